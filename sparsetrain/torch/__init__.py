# SPDX-License-Identifier: Apache-2.0
"""Tables with row-sparse gradients, and optimizers, for training loops in PyTorch.

A name is imported when it is first used, since PyTorch is optional and takes seconds to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from sparsetrain.errors import ConfigError

if TYPE_CHECKING:
    from sparsetrain.torch.embedding import RowSparseEmbedding as RowSparseEmbedding
    from sparsetrain.torch.embedding import RowSparseEmbeddingBag as RowSparseEmbeddingBag
    from sparsetrain.torch.optimizer import RowSparseOptimizer as RowSparseOptimizer

_HOMES = {
    "RowSparseEmbedding": "embedding",
    "RowSparseEmbeddingBag": "embedding",
    "RowSparseOptimizer": "optimizer",
}

__all__ = ["RowSparseEmbedding", "RowSparseEmbeddingBag", "RowSparseOptimizer"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'sparsetrain.torch' has no attribute {name!r}")
    try:
        return getattr(import_module(f"sparsetrain.torch.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError(
            f"st.torch.{name} needs PyTorch: pip install 'sparsetrain[torch]'"
        ) from None


def __dir__() -> list[str]:
    return __all__
