# SPDX-License-Identifier: Apache-2.0
"""PyTorch embedding layers for `RowSparseOptimizer`.

Tables are allocated on huge pages, and this package's kernel looks ids up. The gradient is a sparse
PyTorch tensor with the ids in their original order. In exact mode, rows are brought up to date
before they are read: a lookup updates the rows of its ids, any other read all rows (see
`tracking`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from sparsetrain.embedding.lookup_kernels import lookup_kernel
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.runtime.compiling import host_kernel
from sparsetrain.torch.sharing import DTYPES, aligned, new_table, require_shareable, to_tvm
from sparsetrain.torch.tracking import as_it_is, make_current_

_kernel = host_kernel("lookup", lookup_kernel)


class _Table(torch.nn.Module):
    """Base class of both layers: allocates `weight`; brings rows up to date before a lookup."""

    def __init__(self, num_embeddings: int, embedding_dim: int, *args: Any, **options: Any) -> None:
        given = options.pop("_weight", None)
        weight = given
        if given is None:
            place = {key: options.pop(key, None) for key in ("device", "dtype")}
            weight = new_table(type(self).__name__, num_embeddings, embedding_dim, **place)
        options |= {"_weight": weight, "sparse": True}
        super().__init__(num_embeddings, embedding_dim, *args, **options)
        for option in ("max_norm", "scale_grad_by_freq"):
            if getattr(self, option):
                raise ConfigError(f"{type(self).__name__}: {option} is not supported: remove it")
        if given is None:
            self.reset_parameters()

    def _rows_of(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the table after checking these ids and bringing their rows up to date."""
        weight = self._parameters["weight"]
        require_shareable(f"{type(self).__name__}: weight", weight)
        _require_inside(type(self).__name__, ids, self.num_embeddings)
        make_current_(weight, ids)
        return weight


class RowSparseEmbedding(_Table, torch.nn.Embedding):
    """`torch.nn.Embedding` with row-sparse gradients, on the CPU.

    Parameters, attributes and `from_pretrained` are as in `torch.nn.Embedding` with
    ``sparse=True``; `max_norm` and `scale_grad_by_freq` are not supported. `from_pretrained` shares
    memory.

    Raises
    ------
    ConfigError
        If an option, a dtype or a device is not supported.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return rows (..., D) for integer ids of any shape.

        Raises
        ------
        DataError
            If an id is outside the table.
        """
        if torch.compiler.is_compiling():
            return super().forward(input)
        with as_it_is():
            weight = self._rows_of(input)
            return _Lookup.apply(weight, input.to(torch.int64), self.padding_idx)


class RowSparseEmbeddingBag(_Table, torch.nn.EmbeddingBag):
    """`torch.nn.EmbeddingBag` with row-sparse gradients, on the CPU.

    As in `RowSparseEmbedding`; the modes are ``"sum"`` and ``"mean"``.

    Raises
    ------
    ConfigError
        If an option, a dtype or a device is not supported.
    """

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return pooled rows (B, D).

        Raises
        ------
        DataError
            If an id is outside the table.
        """
        if torch.compiler.is_compiling():
            return super().forward(input, offsets, per_sample_weights)
        if self.mode == "max":
            raise ConfigError("RowSparseEmbeddingBag: mode must be 'sum' or 'mean', not 'max'")
        with as_it_is():
            return functional.embedding_bag(
                input,
                self._rows_of(input),
                offsets,
                mode=self.mode,
                sparse=True,
                per_sample_weights=per_sample_weights,
                include_last_offset=self.include_last_offset,
                padding_idx=self.padding_idx,
            )


class _Lookup(torch.autograd.Function):
    """A row lookup; its gradient is a sparse tensor of ids and cotangents, with duplicates."""

    @staticmethod
    def forward(
        context: Any, weight: torch.Tensor, ids: torch.Tensor, padding_idx: int | None
    ) -> torch.Tensor:
        flat = aligned(ids.reshape(-1))  # the optimizer too needs aligned ids
        context.save_for_backward(flat)
        context.shape, context.padding_idx = weight.shape, padding_idx
        rows = torch.empty((len(flat), weight.shape[1]), dtype=weight.dtype)
        kernel = _kernel(weight.shape[1], DTYPES[weight.dtype], "int64")
        kernel(to_tvm(weight), to_tvm(flat), to_tvm(rows))
        return rows.view(*ids.shape, weight.shape[1])

    @staticmethod
    @once_differentiable
    def backward(context: Any, cotangent: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (ids,) = context.saved_tensors
        values = cotangent.reshape(len(ids), context.shape[1])
        if context.padding_idx is not None:
            kept = ids != context.padding_idx
            ids, values = ids[kept], values[kept]
        sparse = torch.sparse_coo_tensor(
            ids.unsqueeze(0), values, context.shape, check_invariants=False
        )
        return sparse, None, None


def _require_inside(layer: str, ids: torch.Tensor, rows: int) -> None:
    if torch._C._are_functorch_transforms_active():
        raise ConfigError(
            f"{layer}: torch.vmap and transforms of torch.func do not work with this layer: call "
            "it with the whole batch of ids"
        )
    if ids.device.type != "cpu" or ids.dtype not in (torch.int32, torch.int64):
        raise DataError(
            f"{layer}: ids must be int32 or int64 on the CPU, not {ids.dtype} on {ids.device}"
        )
    numbers = ids.numpy()
    # Viewed as unsigned, negative ids are the largest numbers, so one pass checks both bounds.
    if ids.numel() and numbers.view(f"u{numbers.itemsize}").max() >= rows:
        bad = numbers[(numbers < 0) | (numbers >= rows)][0]
        raise DataError(f"{layer}: id {bad} is outside the table's {rows} rows")
