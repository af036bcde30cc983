# SPDX-License-Identifier: Apache-2.0
"""Parameters with rows that lag in exact mode until something reads them.

Every PyTorch function that takes a `TableParameter` sees up-to-date rows. This package's own code
first updates the rows that it needs, and then reads them within `as_it_is`, which turns tracking
off. Memory obtained before a step (a view, ``.data``, an array) is not tracked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from sparsetrain.tables.table import Table

as_it_is = torch._C.DisableTorchFunctionSubclass


class TableParameter(torch.nn.Parameter):
    """A parameter that brings its rows up to date before a PyTorch function is called with it."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Bring rows up to date unless `func` is in `_WITHOUT_VALUES`; then call it."""
        given = kwargs or {}
        with as_it_is():
            if func not in _WITHOUT_VALUES:
                for argument in tree_leaves((args, given)):
                    make_current_(argument)
            return func(*args, **given)


class Reader(NamedTuple):
    """The table that brings a parameter's rows up to date; lives as long as the parameter."""

    table: Table

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy has up-to-date rows, and needs no reader


def make_current_(parameter: Any, ids: torch.Tensor | None = None) -> None:
    """In exact mode, bring the rows with these ids, by default all rows, up to date."""
    reader = getattr(parameter, "row_sparse_reader", None)
    if reader is None:
        return
    if ids is None:
        reader.table.current()
    else:
        parameter.__class__ = TableParameter  # from the next step on, the remaining rows lag
        reader.table.rows(ids.numpy())


_ATTRIBUTES = (
    *("device", "dtype", "grad", "grad_fn", "is_cpu", "is_cuda", "is_leaf", "is_meta", "is_sparse"),
    *("layout", "ndim", "requires_grad", "retains_grad", "shape", "_backward_hooks", "_version"),
)
_METHODS = (
    *("__len__", "dim", "element_size", "is_complex", "is_contiguous", "is_floating_point"),
    *("nelement", "numel", "register_hook", "register_post_accumulate_grad_hook"),
    *("requires_grad_", "size", "stride"),
)
_WITHOUT_VALUES = frozenset(
    (
        *(getattr(torch.Tensor, name).__get__ for name in _ATTRIBUTES),
        *(getattr(torch.Tensor.grad, name) for name in ("__set__", "__delete__")),
        *(getattr(torch.Tensor, name) for name in _METHODS),
        *(torch.numel, torch.is_complex, torch.is_floating_point),
        torch.Tensor.requires_grad.__set__,
    )
)
