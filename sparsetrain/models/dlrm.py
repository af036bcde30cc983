# SPDX-License-Identifier: Apache-2.0
"""DLRM: a bottom MLP of dense features, embeddings of ids, and a top MLP of their interaction.

Naumov et al. 2019, https://arxiv.org/abs/1906.00091. The model is ordinary `tvm.relax.frontend.nn`
with two operators of this package: the embedding lookup and the dot interaction. With the cross
interaction it is DLRM-DCNv2, MLPerf's model since 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.relax.frontend import nn

from sparsetrain.models.arguments import check_widths
from sparsetrain.models.by_feature import Dim
from sparsetrain.models.click_model import ClickModel
from sparsetrain.models.fields import flat
from sparsetrain.models.interaction.selection import (
    CROSS_OPTIONS,
    Interaction,
    check_interaction,
    make_interaction,
)
from sparsetrain.models.layers import MLP
from sparsetrain.models.numbers import columns
from sparsetrain.system.argument_checks import require_int


class DLRM(ClickModel):
    """The deep learning recommendation model.

    Parameters
    ----------
    rows : sequence of F int
        Number of rows of each feature's table.
    dim : int, or mapping from str to int
        D, width of all tables; or widths by feature, as in `ClickModel`. With several widths and
        dot products, D is the widest, and narrower vectors are projected to it; for other
        interactions, D is the width of ``"*"``.
    bottom : sequence of int
        Hidden widths of the bottom MLP; its input (`num_dense`) and its output (D) are added.
    top : sequence of int
        Hidden widths of the top MLP; its input and its output, one per label, are added.
    num_dense : int
        Number of dense features of an example. With 0 the bottom MLP gets a constant 1, so its
        output is a learnt vector in the interaction. If numbers have learnt vectors, the bottom MLP
        gets these instead of the numbers; in the interaction they would double the number of pairs
        without better scores.
    interaction : {"dot", "cross", "concat"}
        Interaction of the bottom MLP's result and the embeddings: dot products of all pairs, cross
        layers (see `models.interaction.cross`), or none, only concatenation.
    cross_layers, cross_rank : int, optional
        For the cross interaction. By default 3 layers of rank (F + 1) D / 4, at most 512.
    dropout : float
        Rate of the dropout between the layers of both MLPs.
    batch_norm : bool
        Whether both MLPs have batch norm, see `MLP`.
    **rest
        As in `ClickModel`.

    References
    ----------
    Naumov et al. 2019, https://arxiv.org/abs/1906.00091
    """

    kind = "dlrm"

    def __init__(
        self,
        rows: Sequence[int],
        dim: Dim = 16,
        bottom: Sequence[int] = (64,),
        top: Sequence[int] = (64,),
        num_dense: int = 0,
        interaction: Interaction = "dot",
        cross_layers: int | None = None,
        cross_rank: int | None = None,
        dropout: float = 0.0,
        batch_norm: bool = False,
        **rest: Any,
    ) -> None:
        cls = type(self).__name__
        between: dict[str, Any] = {"dropout": dropout, "batch_norm": batch_norm}
        num_dense = require_int(f"{cls}: num_dense", num_dense, 0)
        given = {"bottom": bottom, "top": top}
        hidden = {name: check_widths(cls, name, widths) for name, widths in given.items()}
        self.takes_any_width = interaction != "dot"
        # The order of attributes is the order of parameters, also in saved runs.
        self.bottom: nn.Module = nn.Module()
        super().__init__(rows, dim, num_dense, **rest)
        dim = self.vector_width
        self.num_vectors = self.numbers.count if self.numbers else 0
        floats = num_dense - (self.numbers.inputs if self.numbers else 0)
        widths = [max(floats + self.num_vectors * dim, 1), *hidden["bottom"], dim]
        self.bottom = MLP(widths, last_relu=True, **between)
        numbers = {"cross_layers": cross_layers, "cross_rank": cross_rank}
        features = self.num_embedded - self.num_vectors
        embedded = self.embedded_width - self.num_vectors * dim
        crossing = check_interaction(interaction, numbers, dim + embedded)
        self.interaction, width = make_interaction(crossing, features, dim, embedded)
        self._config |= {**hidden, **crossing}
        widths = [width, *hidden["top"], self.num_logits]
        self.top = MLP(widths, last_relu=False, **between)

    def __repr__(self) -> str:
        config = self.config()
        rows = [table.rows for table in self.embeddings.tables]
        tables = f"{len(rows)} tables of {sum(rows):,} rows x {config['dim']}"
        crossing = "".join(f"{key} {config[key]}, " for key in CROSS_OPTIONS if config[key])
        return f"<DLRM: {tables}, bottom {config['bottom']}, {crossing}top {config['top']}>"

    def forward(self, dense: nn.Tensor, embedded: nn.Tensor) -> nn.Tensor:
        """(B, num_dense) floats and (B, N + F, D) embeddings -> (B, T) logits."""
        if self.numbers:
            of_each = self.vector_width if len(embedded.shape) == 2 else 1
            count = self.num_vectors * of_each
            vectors = columns(embedded, 0, count)
            floats = [flat(vectors) if len(vectors.shape) == 3 else vectors]  # (B, N D)
            if self.numbers.inputs < int(dense.shape[1]):
                floats.append(columns(dense, self.numbers.inputs, int(dense.shape[1])))
            dense = nn.op.concat(floats, dim=1) if len(floats) > 1 else floats[0]
            embedded = columns(embedded, count, int(embedded.shape[1]))  # (B, F, D), or (B, W)
        return self.top(self.interaction(self.bottom(dense), embedded))
