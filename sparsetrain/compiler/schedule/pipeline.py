# SPDX-License-Identifier: Apache-2.0
"""Pass pipeline from a Relax module to scheduled, lowered kernels.

It differs from TVM's CPU pipeline as follows. Attention becomes products and a softmax, which has a
hand-written kernel. Transposes cancel each other or are folded into (batched) products.
Indexing operators have kernels with bounds checks (`sparsetrain.ops.indexing`). The rules of this
package schedule the kernels, whereas TVM's pipeline schedules nothing on a CPU.
`RewriteDataflowReshape` is left out: it aborts on hand-written kernels without a root block, and
reshapes never become kernels here. The arguments of generated shape functions are declared not to
alias. Kernels do not check arguments that provably match.

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

# Operator -> lowering that replaces TVM's lowering.
LEGALIZE = {**legalize.LEGALIZE, **softmax.LEGALIZE}


def pipeline(target: Target, hoisted: str | None = None) -> tvm.transform.Pass:
    """Return the passes between a Relax module and code generation.

    Parameters
    ----------
    target : Target
        The target; its kind must have a backend.
    hoisted : str, optional
        Name of a function that will take its buffers as arguments (see `HoistAllocations`).

    Returns
    -------
    Pass
        The pipeline, for `relax.build(module, target, relax_pipeline=pipeline(target))`. Functions
        may have symbolic extents. Kernels marked `tirx.is_scheduled` stay unchanged.

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
    """Return all passes in order; the passes up to fusion decide which kernels there are."""
    return [
        # Decide which kernels there are.
        SimplifyShapes(),
        relax.backend.DispatchSampling(),
        *schedule.graph,
        relax.backend.DispatchSortScan(),
        LowerAttention(),
        CancelTranspose(),
        FoldIntoHalfMatmul(),
        # Remove products that the passes above have replaced.
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
        # Decide how each kernel runs.
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
