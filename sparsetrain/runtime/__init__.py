# SPDX-License-Identifier: Apache-2.0
"""Tensors and threads of TVM's runtime; the rest of the package imports its modules directly.

The machine: `host`, `targets`, `threads`, `machine`. Memory: `tensors`, `pool`, `workspace` (of a
program). Code: `compiling`, with `lowering`, `exponential`, `object_files` and `library_cache`
(both on disk).
Import of TVM without PyTorch, and with interrupts: `import_tvm`. CUDA from wheels: `cuda_wheels`.
"""

from sparsetrain.runtime import cuda_wheels as _cuda_wheels  # noqa: F401
from sparsetrain.runtime import import_tvm as _import_tvm  # noqa: F401
from sparsetrain.runtime.tensors import NDArray as NDArray
from sparsetrain.runtime.tensors import as_numpy as as_numpy
from sparsetrain.runtime.tensors import as_tensor as as_tensor
from sparsetrain.runtime.tensors import empty as empty
from sparsetrain.runtime.tensors import zeros as zeros
from sparsetrain.runtime.threads import num_threads as num_threads
from sparsetrain.runtime.threads import set_num_threads as set_num_threads
from sparsetrain.system.blas_threads import single_threaded_blas as single_threaded_blas
from sparsetrain.system.exports import public_names as _public_names

__all__, __dir__ = _public_names(globals(), "NDArray")
