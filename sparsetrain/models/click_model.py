# SPDX-License-Identifier: Apache-2.0
"""Base class of click models: `forward` maps dense features and embeddings to logits.

A model of your own is a subclass with a `forward`; `DLRM` is one. Every feature of `Trainer` works
with it, and `st.load(folder, model=CLASS)` loads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from inspect import Parameter
from math import sqrt
from typing import Any, Literal

from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.shared_tables import tables_of
from sparsetrain.embedding import EmbeddingBagCollection, Table
from sparsetrain.kernels.table_formats import TableDtype, format_of
from sparsetrain.models.arguments import check_config, constructor_of, is_own
from sparsetrain.models.by_feature import Dim, PoolingOf, poolings_of, widths_of
from sparsetrain.models.features import Dense
from sparsetrain.models.fields import Fields, Join, in_order
from sparsetrain.models.initialize import Draw, uniform
from sparsetrain.models.label_loss import check_label_weights
from sparsetrain.models.model import Model
from sparsetrain.models.numbers import number_embedding
from sparsetrain.models.projections import Projections


class ClickModel(Model):
    """Model that maps dense features and embeddings of ids to the logits of each row.

    A subclass constructs its layers, and applies them in ``forward(dense, embedded)``: (B,
    num_dense) floats and (B, N + F, D) embeddings -> (B, S) logits. N is the number of numbers with
    a vector, 0 for ``numbers="scaled"``. If tables have several widths, their rows are projected to
    the widest, D; a subclass with ``takes_any_width = True`` gets them concatenated instead, (B,
    W). A subclass adds further arguments of its constructor to `config`, and overrides `initialize`
    for weights with a distribution of their own, such as a norm's.

    Parameters
    ----------
    rows : sequence of F int
        Number of rows of each feature's table.
    dim : int, or mapping from str to int
        D, width of all tables; or widths of features by name: ``{"user": 32}``. ``"*"`` is the
        width of all features that are not named, 16 by default.
    num_dense : int
        Number of dense features per row. With 0, the default, the model gets a column of ones.
    pooling : {None, "sum", "mean"}, or mapping from str to them
        None: one id per feature. Otherwise features are bags of ids, as `sparsetrain.data.Ragged`,
        pooled in this way, or by feature name: ``{"tags": "mean"}``. Features that are not named
        use the pooling of ``"*"``, by default a sum. Without `pooling`, an encoder decides.
    weighted : bool
        Whether bags have per-sample weights; only with ``pooling="sum"``.
    names : sequence of F str, optional
        Names of the features and their tables; ``C1``, ``C2``, ... by default.
    table_dtype : {"float32", "bfloat16", "float16", "int8", "uint8"}
        Storage of the tables. Rows in narrower dtypes are converted to float32 when read and
        rounded stochastically when written; everything else is float32. Tables in int8 have a scale
        for each row, and train by `optim.rowwise_adagrad` or `optim.sgd`. A model with uint8 tables
        can only predict; see `Trainer.quantized`.
    row_weights : bool
        Whether training batches have a weight for each row, which multiplies its loss. The loss is
        still divided by the number of rows. Metrics do not use the weights.
    share_embedding : mapping from str to str, optional
        Name of a feature without its own table -> feature that owns the shared table, as in
        ``encoder.share_embedding``. `rows` must be the same for both.
    labels : mapping from str to str, int or Label, optional
        Name and kind of each of the T labels, as in ``encoder.labels``; by default one binary
        label. The logit of a real label is the prediction itself; a number C means the classes 0 to
        C - 1, with a logit each.
    label_weights : mapping from str to float, optional
        Factor of each label's loss; by default 1.
    numbers : {"scaled", "piecewise", "binned", "periodic", "autodis"}
        "scaled": numbers are only dense features. Otherwise each also has a learnt vector, an
        additional field of `embedded`; see `PiecewiseLinear`, `Binned`, `Periodic` and `AutoDis` in
        `models.numbers`.
    number_bins : sequence of N sequences of float, optional
        For each number, increasing boundaries between its bins, in units of the dense feature; from
        an encoder with quantiles. Numbers are the first N dense features, by default all.
    missing_flags : bool
        Whether the next N dense features flag missing numbers, as the encoder's do.

    Attributes
    ----------
    kind : str
        Name of the class in saved runs; by default the Python class's name.
    takes_any_width : bool
        Whether `forward` accepts rows of several widths, concatenated.
    widths : Widths
        Width of each feature, without first-order weights.

    Examples
    --------
    >>> from tvm.relax.frontend import nn
    >>> class Linear(ClickModel):
    ...     def __init__(self, rows, dim=4, num_dense=0, **rest):
    ...         super().__init__(rows, dim, num_dense, **rest)
    ...         self.last = nn.Linear(self.flat_width, 1)
    ...
    ...     def forward(self, dense, embedded):
    ...         flat = nn.op.reshape(embedded, (dense.shape[0], -1))
    ...         return self.last(nn.op.concat([dense, flat], dim=1))  # (B, 1)
    >>> Linear([5, 3], num_dense=2).config()["num_dense"]
    2
    """

    _options_of_all = ("table_dtype", "label_weights", "pooling")
    deviation = 0.05  # standard deviation of numbers' initial vectors
    takes_any_width = False
    num_weights = 0  # number of first-order weights before each vector

    def __init__(
        self,
        rows: Sequence[int],
        dim: Dim = 16,
        num_dense: int = 0,
        pooling: PoolingOf = None,
        weighted: bool = False,
        names: Sequence[str] | None = None,
        table_dtype: TableDtype = "float32",
        row_weights: bool = False,
        share_embedding: Mapping[str, str] | None = None,
        labels: Mapping[str, Any] | None = None,
        label_weights: Mapping[str, float] | None = None,
        numbers: Literal["scaled", "piecewise", "binned", "periodic", "autodis"] = "scaled",
        number_bins: Sequence[Sequence[float]] | None = None,
        missing_flags: bool = False,
    ) -> None:
        arguments = {
            "rows": rows,
            "dim": dim,
            "num_dense": num_dense,
            "pooling": pooling,
            "weighted": weighted,
            "names": names,
            "table_dtype": table_dtype,
            "row_weights": row_weights,
            "share_embedding": share_embedding,
            "labels": labels,
            "label_weights": label_weights,
            "numbers": numbers,
            "number_bins": number_bins,
            "missing_flags": missing_flags,
        }
        super().__init__()
        self._config = check_config(type(self), arguments, least_dim=0 if self.num_weights else 1)
        self.labels, self.row_weights = self._config["labels"], self._config["row_weights"]
        self.label_weights = self._config["label_weights"] or {}
        check_label_weights(self.label_weights, self.all_labels)
        # TVM rejects NumPy's integers as extents; `_config` has Python's.
        rows, names = self._config["rows"], self._config["names"]
        named = tables_of(names, self._config["share_embedding"] or {})
        self.widths = widths_of(self._config["dim"], named)
        own = [width + self.num_weights for width in self.widths.features]
        tables = [
            Table(names[f], rows[f], own[f]) for f in range(len(rows)) if names[f] == named[f]
        ]
        self.embeddings = EmbeddingBagCollection(
            tables,
            named,
            poolings_of(self._config["pooling"], names),
            table_dtype,
        )
        join = None if self.widths.are_equal else self._join()
        self.numbers = number_embedding(
            type(self).__name__, self._config, self.vector_width, self.deviation
        )
        number = 1 + (self._config["pooling"] is not None) + self._config["weighted"]
        located, num_dense = ("rows", "offsets", "weights")[:number], self._config["num_dense"]
        self.features = {
            "dense": Dense(num_dense),
            "embedded": Fields(
                self.embeddings, names, rows, named, located, num_dense, self.numbers, join
            ),
        }

    def _join(self) -> Join:
        """The function that joins embeddings of several widths."""
        features = [placement.features for placement in self.embeddings.placements.values()]
        if self.takes_any_width:
            return partial(in_order, features=features)
        widths = [width - self.num_weights for width in self.embeddings.placements]
        self.projections = Projections(features, widths, self.widths.common, self.num_weights)
        return self.projections

    @classmethod
    def bins_numbers(cls) -> bool:
        """As in `Model`: models of this package do, but your own classes may not expect vectors."""
        return is_own(cls)

    @classmethod
    def _arguments_of(cls, encoder: Encoder) -> dict[str, Any]:
        return encoder.model_arguments

    def config(self) -> dict[str, Any]:
        """The constructor's arguments, as plain values, with defaults filled in."""
        own, parameters = super().config(), constructor_of(type(self)).parameters.values()
        if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
            return {**own, **self._config}
        return {name: self._config.get(name, value) for name, value in own.items()}

    @property
    def vector_width(self) -> int:
        """Width of the vectors of numbers, and of ids too unless `takes_any_width`."""
        own = self.widths.others if self.takes_any_width else self.widths.common
        return own + self.num_weights

    @property
    def embedded_width(self) -> int:
        """Total width of a row's embeddings."""
        if not self.takes_any_width:
            return self.num_embedded * self.vector_width
        numbers = self.num_embedded - len(self.widths.features)
        return sum(w + self.num_weights for w in self.widths.features) + numbers * self.vector_width

    @property
    def flat_width(self) -> int:
        """Total width of a row: its dense features and embeddings."""
        return max(self._config["num_dense"], 1) + self.embedded_width

    @property
    def num_embedded(self) -> int:
        """F + N, a row's number of embeddings: of ids, and of numbers unless they are scaled."""
        return len(self._config["rows"]) + (self.numbers.count if self.numbers else 0)

    def draw_of_table(self, table: str, shape: Sequence[int]) -> tuple[Draw, str]:
        """As in `Model`, but refuse tables that can only be read."""
        format_of(self._config["table_dtype"]).require_trainable()
        return uniform(sqrt(1 / shape[0])), f"embeddings.{table}"
