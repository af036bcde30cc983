# SPDX-License-Identifier: Apache-2.0
"""Pass pipeline from a Relax module to scheduled, lowered kernels, in order.

It is TVM's own CPU pipeline with these differences. Attention becomes products and a softmax, which
has a hand-written kernel. Transposes are cancelled or folded into products of matrices and of
batches. Operators that index have kernels with bounds checks (`sparsetrain.ops.indexing`). Kernels
are scheduled by the rules of this package, whereas TVM's pipeline schedules nothing on a CPU.
Reshapes never become kernels, so `RewriteDataflowReshape`, which aborts on hand-written kernels
without a root block, is left out. Generated shape functions are declared free of aliasing. Kernels
do not check arguments that provably match.

Cost: about 0.05 s per distinct kernel, once for all batch sizes.
"""

import tvm
from tvm import relax
from tvm.target import Target

from sparsetrain.backend import Schedule, backend_of
from sparsetrain.compiler.schedule import softmax
from sparsetrain.compiler.schedule.elide_argument_checks import ElideArgumentChecks
from sparsetrain.compiler.schedule.fold_rounding import FoldIntoHalfMatmul
from sparsetrain.compiler.schedule.fusion import keep_hand_written_kernels, mark_resizing
from sparsetrain.compiler.schedule.hoist_allocations import HoistAllocations
from sparsetrain.compiler.schedule.lower_attention import LowerAttention
from sparsetrain.compiler.schedule.shape_functions import SettleShapeFunctions
from sparsetrain.compiler.schedule.simplify_shapes import SimplifyShapes
from sparsetrain.compiler.schedule.transposes import CancelTranspose
from sparsetrain.ops import legalize

# Operator -> lowering that replaces TVM's.
LEGALIZE = {**legalize.LEGALIZE, **softmax.LEGALIZE}


def pipeline(target: Target, hoisted: str | None = None) -> tvm.transform.Pass:
    """Return the passes between a Relax module and code generation.

    Parameters
    ----------
    target : Target
        The target; its kind must have a backend.
    hoisted : str, optional
        Name of a function that takes its buffers as arguments, see `HoistAllocations`.

    Returns
    -------
    Pass
        To be used as `relax.build(module, target, relax_pipeline=pipeline(target))`. Functions may
        have symbolic extents. Hand-written kernels marked `tirx.is_scheduled` stay as they are.

    Raises
    ------
    ConfigError
        If the target's kind has no backend.

    Examples
    --------
    >>> target = Target.from_device("cpu")
    >>> relax.build(
    ...     module, target, relax_pipeline=pipeline(target)
    ... )  # doctest: +SKIP

    """
    sequence = tvm.transform.Sequential(passes(backend_of(target).schedule(), hoisted))

    @tvm.transform.module_pass(opt_level=0, name="SparsetrainPipeline")
    def run(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        with target:
            return sequence(module)

    return run


def passes(schedule: Schedule, hoisted: str | None = None) -> list[tvm.transform.Pass]:
    """Return all passes in order; the passes up to fusion decide the kernels."""
    return [
        # Which kernels there are.
        SimplifyShapes(),
        relax.backend.DispatchSampling(),
        *schedule.graph,
        relax.backend.DispatchSortScan(),
        LowerAttention(),
        CancelTranspose(),
        FoldIntoHalfMatmul(),
        # Products that were replaced by their transposes are dead.
        relax.transform.DeadCodeElimination(),
        *schedule.products,
        relax.transform.DeadCodeElimination(),
        # A remaining reshape becomes a view, not a copy.
        relax.transform.LegalizeOps(LEGALIZE, skip_ops=["relax.reshape"]),
        keep_hand_written_kernels(),
        relax.transform.AnnotateTIROpPattern(),
        mark_resizing(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
        # How each one runs.
        *schedule.kernels,
        # Lower the calls, from a graph of values to code for the virtual machine.
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        ElideArgumentChecks(),
        *([] if hoisted is None else [HoistAllocations(hoisted), relax.transform.Normalize()]),
        relax.transform.StaticPlanBlockMemory(),
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        SettleShapeFunctions(),
        relax.transform.AttachGlobalSymbol(),
    ]
