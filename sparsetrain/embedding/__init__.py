# SPDX-License-Identifier: Apache-2.0
"""Embedding lookups: the Relax operators, and modules that place features in tables."""

from sparsetrain import runtime as _runtime  # noqa: F401
from sparsetrain.embedding.collection import EmbeddingBag as EmbeddingBag
from sparsetrain.embedding.collection import EmbeddingBagCollection as EmbeddingBagCollection
from sparsetrain.embedding.collection import Table as Table
from sparsetrain.embedding.layer import Embedding as Embedding
from sparsetrain.embedding.lookup_operators import embedding_bag as embedding_bag
from sparsetrain.embedding.lookup_operators import lookup as lookup
from sparsetrain.embedding.ragged_tensor import RaggedTensor as RaggedTensor
from sparsetrain.system.exports import public_names as _public_names

__all__, __dir__ = _public_names(globals())
