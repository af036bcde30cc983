# SPDX-License-Identifier: Apache-2.0
"""The one door to TVM's runtime: threads, targets, memory, compiling."""

from sparsetrain.runtime import gpu as gpu
from sparsetrain.runtime import instructions as instructions
from sparsetrain.runtime import threads as threads
from sparsetrain.runtime.compiling import Kernel as Kernel
from sparsetrain.runtime.compiling import build_relax as build_relax
from sparsetrain.runtime.compiling import compile_kernel as compile_kernel
from sparsetrain.runtime.compiling import compile_relax as compile_relax
from sparsetrain.runtime.compiling import virtual_machine as virtual_machine
from sparsetrain.runtime.compiling import vm_pipeline as vm_pipeline
from sparsetrain.runtime.compiling import watching as watching
from sparsetrain.runtime.host import host_target as host_target
from sparsetrain.runtime.library_cache import text_of as text_of
from sparsetrain.runtime.lowering import UNCHECKED as UNCHECKED
from sparsetrain.runtime.pooled import bound_pool as bound_pool
from sparsetrain.runtime.pooled import sent as sent
from sparsetrain.runtime.pooled import temporary as temporary
from sparsetrain.runtime.staging import Slot as Slot
from sparsetrain.runtime.staging import Stage as Stage
from sparsetrain.runtime.staging import Staged as Staged
from sparsetrain.runtime.targets import device_of as device_of
from sparsetrain.runtime.targets import resolve_target as resolve_target
from sparsetrain.runtime.tensors import NDArray as NDArray
from sparsetrain.runtime.tensors import as_numpy as as_numpy
from sparsetrain.runtime.tensors import as_tensor as as_tensor
from sparsetrain.runtime.tensors import copy_ as copy_
from sparsetrain.runtime.tensors import empty as empty
from sparsetrain.runtime.tensors import is_plain as is_plain
from sparsetrain.runtime.tensors import leading_rows as leading_rows
from sparsetrain.runtime.tensors import moved as moved
from sparsetrain.runtime.tensors import on_gpu as on_gpu
from sparsetrain.runtime.tensors import reshaped as reshaped
from sparsetrain.runtime.tensors import target_of as target_of
from sparsetrain.runtime.tensors import writing as writing
from sparsetrain.runtime.tensors import zeros as zeros
from sparsetrain.runtime.threads import available_cores as available_cores
from sparsetrain.runtime.threads import num_threads as num_threads
from sparsetrain.runtime.threads import set_num_threads as set_num_threads
from sparsetrain.runtime.workspace import Need as Need
from sparsetrain.runtime.workspace import Workspace as Workspace
from sparsetrain.runtime.workspace import needs_of as needs_of
from sparsetrain.system.exports import exported as _exported
from sparsetrain.system.memory import meminfo as meminfo
from sparsetrain.system.memory import refuse_more_than_all as refuse_more_than_all

__all__ = _exported(globals())
