# SPDX-License-Identifier: Apache-2.0
"""One kind of bag as a compiled program with its gradient, numbers for it, and NumPy's answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

import sparsetrain as st
from sparsetrain.embedding import embedding_bag
from tests.helpers import dense_sum

ROWS = 11


@dataclass(frozen=True)
class Kind:
    """How bags are pooled, and the types of what goes in."""

    mode: str | tuple[str, ...] = "sum"
    weighted: bool = False
    features: int = 1
    width: int = 5
    dtype: str = "float32"
    id_dtype: str = "int32"
    table_dtype: str | None = None  # if it is stored in less than `dtype`

    @cache  # noqa: B019  (kinds live as long as the tests)
    def program(self) -> st.Program:
        """``(sum(cotangent * bags), gradients)``: the gradients are the bags' cotangents."""
        wanted = ["table", "weights"] if self.weighted else ["table"]
        return st.value_and_grad(self._module(), "probe", wanted)

    @cache  # noqa: B019
    def forward(self) -> st.Program:
        """The bags themselves."""
        return st.Program(self._module(), "bags")

    def _module(self) -> tvm.IRModule:
        builder = relax.BlockBuilder()
        for name in ("probe", "bags"):
            variables = self._variables(bags_are_known=name == "probe")
            cotangent = variables.pop("cotangent")
            arguments = (
                [cotangent, *variables.values()] if name == "probe" else [*variables.values()]
            )
            with builder.function(name, arguments):
                with builder.dataflow():
                    bags = embedding_bag(**variables, mode=self.mode, features=self.features)
                    result = builder.emit(bags)
                    if name == "probe":
                        result = builder.emit(op.sum(builder.emit(op.multiply(result, cotangent))))
                    result = builder.emit_output(result)
                builder.emit_func_output(result)
        return builder.get()

    def _variables(self, bags_are_known: bool = True) -> dict[str, relax.Var]:
        batch, count = tvm.tirx.Var("B", "int64"), tvm.tirx.Var("N", "int64")
        ends = batch * self.features + 1 if bags_are_known else tvm.tirx.Var("K", "int64")
        types = {
            "cotangent": ((batch, self.features, self.width), self.dtype),
            "table": ((ROWS, self.width), self.table_dtype or self.dtype),
            "ids": ((count,), self.id_dtype),
            "offsets": ((ends,), "int64"),
            "weights": ((count,), self.dtype),
        }
        if not self.weighted:
            del types["weights"]
        return {name: relax.Var(name, relax.TensorType(*ty)) for name, ty in types.items()}

    def draw(self, lengths: list[int], rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Arguments for bags of these lengths, feature after feature; ids repeat."""
        count, bags = sum(lengths), len(lengths)
        arguments = {
            "cotangent": rng.standard_normal((bags // self.features, self.features, self.width)),
            "table": rng.standard_normal((ROWS, self.width)),
            "ids": rng.integers(0, ROWS, count).astype(self.id_dtype),
            "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype("int64"),
            "weights": rng.standard_normal(count),
        }
        if not self.weighted:
            del arguments["weights"]
        floats = {n: a.astype(self.dtype) for n, a in arguments.items() if a.dtype == "float64"}
        return arguments | floats


@dataclass(frozen=True)
class Answer:
    """Result and cotangents of a kind in float64 NumPy, bag by bag."""

    bags: np.ndarray
    table: np.ndarray
    weights: np.ndarray


def in_numpy(kind: Kind, arguments: dict[str, np.ndarray]) -> Answer:
    """Compute what `kind` should give."""
    exact = {n: a.astype("float64") for n, a in arguments.items() if a.dtype.kind == "f"}
    ids, offsets = arguments["ids"], arguments["offsets"]
    factors = exact.get("weights", np.ones(len(ids)))
    bags = np.zeros_like(exact["cotangent"])
    per_id = np.zeros((len(ids), kind.width))  # cotangent of the bag's result at each of its ids
    for bag in range(len(offsets) - 1):
        here = slice(offsets[bag], offsets[bag + 1])
        feature, row = divmod(bag, len(bags))
        mode = kind.mode if isinstance(kind.mode, str) else kind.mode[feature]
        divisor = max(len(ids[here]), 1) if mode == "mean" else 1
        bags[row, feature] = factors[here] @ exact["table"][ids[here]] / divisor
        per_id[here] = exact["cotangent"][row, feature] / divisor
    table = dense_sum(ids, factors[:, None] * per_id, ROWS)
    return Answer(bags, table, (exact["table"][ids] * per_id).sum(axis=1))
