# SPDX-License-Identifier: Apache-2.0
"""From a Relax module to scheduled, lowered kernels: the whole list of passes, in order.

The list is TVM's own CPU pipeline with three differences. Transposes are folded into products,
kernels are scheduled by the rules of this package (TVM's pipeline schedules nothing on a CPU),
and `RewriteDataflowReshape` is left out: it aborts on hand-written kernels that have no root
block, and a reshape fuses into its neighbours anyway.

Cost: about 0.05 s per distinct kernel, once, whatever the batch sizes that follow.
"""

import tvm
from tvm import relax, tirx
from tvm.s_tir.dlight import ApplyDefaultSchedule
from tvm.target import Target

from sparsetrain.errors import ConfigError

from .elementwise import Elementwise
from .fallback import Fallback
from .fold_transpose import FoldTransposeIntoMatmul
from .matmul import Matmul
from .reduction import RowwiseReductions, SingleReduction

# Asked in this order; the first that does not decline decides.
CPU_RULES = (Matmul(), Elementwise(), SingleReduction(), RowwiseReductions(), Fallback())


def pipeline(target: Target) -> tvm.transform.Pass:
    """All passes between a Relax module and code generation for a CPU.

    Parameters
    ----------
    target : Target
        An `llvm` target; its vector width decides the register tiles.

    Returns
    -------
    Pass
        To be used as `relax.build(module, target, relax_pipeline=pipeline(target))`. Functions may
        have symbolic extents. Hand-written kernels marked `tirx.is_scheduled` stay as they are.

    Raises
    ------
    ConfigError
        If `target` is not a CPU.

    Examples
    --------
    >>> target = Target.from_device("cpu")
    >>> executable = relax.build(module, target, relax_pipeline=pipeline(target))  # doctest: +SKIP
    """
    if target.kind.name != "llvm":
        raise ConfigError(f"no schedule for target kind {target.kind.name!r}: use an llvm target")
    passes = tvm.transform.Sequential([*optimize(), *lower()])

    @tvm.transform.module_pass(opt_level=0, name="SparsetrainCpuPipeline")
    def run(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        with target:
            return passes(module)

    return run


def optimize() -> list[tvm.transform.Pass]:
    """Passes that decide what the kernels are and how each one runs."""
    return [
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        KeepHandWrittenKernels(),
        FoldTransposeIntoMatmul(),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
        ApplyDefaultSchedule(*CPU_RULES),
    ]


def lower() -> list[tvm.transform.Pass]:
    """Passes that turn Relax functions into code for its virtual machine."""
    return [
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        ShapeFunctionsDoNotAlias(),
        relax.transform.AttachGlobalSymbol(),
    ]


@tvm.transform.module_pass(opt_level=0, name="KeepHandWrittenKernels")
class KeepHandWrittenKernels:
    """Mark the kernels that a module brings along as opaque to fusion.

    Fusion would rebuild them from blocks they may not have, or undo their schedule. Those without
    the attribute `tirx.is_scheduled` are still offered to the schedule rules.
    """

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Set `op_pattern` of every kernel to opaque."""
        opaque = 8  # OpPatternKind.kOpaque, which Python does not name.
        functions = {
            name: function.with_attr("op_pattern", opaque)
            if isinstance(function, tirx.PrimFunc)
            else function
            for name, function in mod.functions_items()
        }
        return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


@tvm.transform.module_pass(opt_level=0, name="ShapeFunctionsDoNotAlias")
class ShapeFunctionsDoNotAlias:
    """Say that generated shape functions do not alias, which they cannot: they have one buffer.

    TVM 0.27 drops `noalias` from a whole LLVM module if one function lacks it and sorts last by
    name. The kernels then keep their accumulators in memory, at a third of the speed.
    Hand-written kernels should therefore carry `tirx.noalias` too.
    """

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Set `tirx.noalias` on host functions that `VMShapeLower` made."""
        for name, function in mod.functions_items():
            if isinstance(function, tirx.PrimFunc) and function.attrs.get("tirx.is_host_func"):
                mod[name] = function.with_attr("tirx.noalias", True)
        return mod
