# SPDX-License-Identifier: Apache-2.0
"""Base class of click models: embedding tables, inputs of a batch, loss and initial weights.

A model of your own is a subclass whose `forward` maps dense features and embeddings to a logit;
`DLRM` is one. All of `Trainer` works for it, and `st.load(folder, model=CLASS)` loads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from inspect import Parameter, signature
from math import sqrt
from typing import Any

import numpy as np
import tvm
from tvm.relax.frontend import nn

from sparsetrain import runtime
from sparsetrain.data.batch import Batch
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.data.shared_tables import owners_of
from sparsetrain.embedding import EmbeddingBagCollection, Table
from sparsetrain.embedding.bags import BagPlacing
from sparsetrain.embedding.collection import Placement, Pooling
from sparsetrain.embedding.placing import Placing, Room
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.kernels.table_formats import TableDtype, check_trainable
from sparsetrain.models.features import Ids
from sparsetrain.models.functions import by_name, check_logits, in_training, label_spec
from sparsetrain.models.initialize import Draw, uniform
from sparsetrain.models.labels import check_label_weights, loss_of_labels
from sparsetrain.models.layers import FIRST_ROW, KEY
from sparsetrain.models.model import Model
from sparsetrain.models.options import check_config
from sparsetrain.system.locks import with_builder_lock


class ClickModel(Model):
    """Model from dense features and embeddings of ids to the logits of the labels of a row.

    A subclass constructs its layers, and computes with them in `forward`. It adds further arguments
    of its constructor to `config`, and overrides `initialize` for weights with other distributions,
    such as those of a normalisation.

    Parameters
    ----------
    rows : sequence of F int
        Rows of each feature's table.
    dim : int
        D, width of all tables.
    num_dense : int
        Dense features of a row. With 0 the model gets a column of ones.
    pooling : {None, "sum", "mean"}
        None: one id per feature. Otherwise bags of ids, as `sparsetrain.data.Ragged`.
    weighted : bool
        Bags have per-sample weights; only with ``pooling="sum"``.
    names : sequence of F str, optional
        Names of the features and their tables; ``C1``, ``C2``, ... by default.
    table_dtype : {"float32", "bfloat16", "float16", "int8", "uint8"}
        Storage of the tables. Rows in less than float32 are read into it and rounded
        stochastically when written; everything else is float32. Tables in int8 have a scale for
        each row, and train by `optim.rowwise_adagrad` or `optim.sgd`. A model with uint8 tables can
        only predict; see `Trainer.quantized`.
    row_weights : bool
        Training batches have a weight for each row, which multiplies its loss. The loss is still
        divided by the number of rows. Metrics do not use the weights.
    share_embedding : mapping from str to str, optional
        From the name of a feature without a table of its own to the feature whose table it looks
        up, as in ``encoder.share_embedding``. Both have the same number of rows.
    labels : mapping from str to str, int or Label, optional
        Name and kind of each of the T labels, as in ``encoder.labels``; by default one of 0 and 1.
        The logit of a real label is the prediction itself; a number C is that of the classes 0 to
        C - 1, with a logit each.
    label_weights : mapping from str to float, optional
        Factors of the losses of labels; by default 1.

    Attributes
    ----------
    kind : str
        Name of the class in saved runs; by default the class's own name.

    Examples
    --------
    >>> class Linear(ClickModel):
    ...     def __init__(self, rows, dim=4, num_dense=13, **rest):
    ...         super().__init__(rows, dim, num_dense, **rest)
    ...         self.last = nn.Linear(self.flat_width, 1)
    ...
    ...     def forward(self, dense, embedded):
    ...         flat = nn.op.reshape(embedded, (dense.shape[0], -1))  # (B, F * D)
    ...         return self.last(nn.op.concat([dense, flat], dim=1))  # (B, 1)
    >>> Linear([5, 3], num_dense=2).config()["num_dense"]
    2
    """

    _options_of_all = ("table_dtype", "label_weights")

    def __init__(
        self,
        rows: Sequence[int],
        dim: int = 16,
        num_dense: int = 13,
        pooling: Pooling = None,
        weighted: bool = False,
        names: Sequence[str] | None = None,
        table_dtype: TableDtype = "float32",
        row_weights: bool = False,
        share_embedding: Mapping[str, str] | None = None,
        labels: Mapping[str, Any] | None = None,
        label_weights: Mapping[str, float] | None = None,
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
        }
        super().__init__()
        self._config = check_config(type(self).__name__, arguments)
        self.labels, self.row_weights = self._config["labels"], self._config["row_weights"]
        self.label_weights = self._config["label_weights"] or {}
        check_label_weights(self.label_weights, self.all_labels)
        # TVM rejects NumPy's integers as extents; the config has Python's.
        rows, dim, names = (self._config[name] for name in ("rows", "dim", "names"))
        owners = self.owners()
        tables = [Table(names[f], rows[f], dim) for f in range(len(rows)) if owners[f] == f]
        features = [names[owner] for owner in owners]
        self.embeddings = EmbeddingBagCollection(tables, features, pooling, table_dtype)

    @classmethod
    def _arguments_of(cls, encoder: Encoder) -> dict[str, Any]:
        return encoder.model_arguments

    def config(self) -> dict[str, Any]:
        """The constructor's arguments, as plain values, with defaults filled in."""
        own, parameters = super().config(), signature(type(self)).parameters.values()
        if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
            return {**own, **self._config}
        return {name: self._config.get(name, value) for name, value in own.items()}

    def forward(self, dense: nn.Tensor, embedded: nn.Tensor) -> nn.Tensor:
        """(B, num_dense) floats and (B, F, D) embeddings -> (B, S) logits."""
        raise ConfigError(f"{type(self).__name__} has no forward(dense, embedded)")

    @property
    def flat_width(self) -> int:
        """Numbers of a row: its dense features and embeddings side by side."""
        rows, dim = self._config["rows"], self._config["dim"]
        return self._dense_width + len(rows) * int(dim)

    @property
    def _dense_width(self) -> int:
        return max(self._config["num_dense"], 1)

    def logits(
        self,
        dense: nn.Tensor,
        rows: nn.Tensor,
        offsets: nn.Tensor | None = None,
        weights: nn.Tensor | None = None,
    ) -> nn.Tensor:
        """(B, num_dense) floats and located ids -> (B, S) logits."""
        embedded = self.embed(rows, offsets, weights)
        # The compiler knows the number of offsets of bags, not that they are for B rows.
        if offsets is not None:
            extents = (dense.shape[0], len(self._config["rows"]), self._config["dim"])
            embedded = nn.op.reshape(embedded, extents)
        return check_logits(self, self.forward(dense, embedded), "dense", dense.shape[0])

    def embed(
        self, rows: nn.Tensor, offsets: nn.Tensor | None, weights: nn.Tensor | None
    ) -> nn.Tensor:
        """Located ids -> (B, F, D) embeddings."""
        located = [a for a in (rows, offsets, weights) if a is not None]
        return self.embeddings({self._config["dim"]: located})[self._config["dim"]]

    def loss(
        self,
        labels: nn.Tensor,
        dense: nn.Tensor,
        rows: nn.Tensor,
        offsets: nn.Tensor | None = None,
        weights: nn.Tensor | None = None,
        row_weights: nn.Tensor | None = None,
    ) -> nn.Tensor:
        """Sum of the mean losses of all labels, as in `Model`."""
        logits = self.logits(dense, rows, offsets, weights)  # (B, S)
        return loss_of_labels(logits, labels, self.all_labels, row_weights, self.label_weights)

    def _trained_loss(self, **inputs: nn.Tensor) -> Any:
        return in_training(self, self.loss, inputs)

    @property
    def functions(self) -> list[str]:
        """Names of the functions that `export` gives."""
        return ["loss", "logits"]

    @with_builder_lock
    def export(self) -> tvm.IRModule:
        """A Relax module with the functions ``loss`` and ``logits`` and a symbolic batch size."""
        index_dtype = self._placement.index_dtype
        inputs = {"dense": nn.spec.Tensor(["B", self._dense_width], "float32")}
        if self._config["pooling"] is None:
            inputs["rows"] = nn.spec.Tensor(["B", len(self._config["rows"])], index_dtype)
        else:
            inputs["rows"] = nn.spec.Tensor(["N"], index_dtype)
            inputs["offsets"] = nn.spec.Tensor(["bags_plus_1"], "int64")
        if self._config["weighted"]:
            inputs["weights"] = nn.spec.Tensor(["N"], "float32")
        loss = {"labels": label_spec(self), **inputs}
        if self.row_weights:
            loss["row_weights"] = nn.spec.Tensor(["B"], "float32")
        if self.has_dropout:
            loss |= dict.fromkeys((KEY, FIRST_ROW), nn.spec.Tensor([1], "int64"))
        module, _ = self.export_tvm(
            {"loss": by_name(self._trained_loss, loss), "logits": by_name(self.logits, inputs)}
        )
        return module

    def initialize(self, seed: int, *, fill: bool = True) -> dict[str, runtime.NDArray]:
        """As in `Model`.

        Raises
        ------
        ConfigError
            Also if the tables are uint8, which cannot be trained.
        """
        if fill:
            check_trainable(self._config["table_dtype"])
        return super().initialize(seed, fill=fill)

    def draw_of_table(self, table: str, shape: Sequence[int]) -> tuple[Draw, str]:
        """As in `Model`."""
        return uniform(sqrt(1 / shape[0])), f"embeddings.{table}"

    def tables(self) -> Mapping[str, dict[str, slice]]:
        """Parameter name of each storage -> the rows of each table in it."""
        slices = {table: rows for table, (_, rows) in self.embeddings.slices().items()}
        return {self._storage: slices}

    def single_ids(self) -> list[str]:
        """Names of the features, by which rows can be grouped."""
        return list(self._config["names"])

    def read(self, name: str, batch: Batch, *, whole: bool = False) -> Any:
        """The ids of a feature of a batch, (B,) int64."""
        return Ids(name).read(name, batch, self._config["names"].index(name))

    def table_of(self, column: str) -> str:
        """Name of the table of a column, as saved runs have it."""
        share = self._config["share_embedding"] or {}
        return f"embeddings.{share.get(column, column)}.weight"

    def bind(self, encoder: Encoder) -> None:
        """Refuse an encoder whose columns share other tables than the features of this model do.

        A model of ids that came encoded may share tables by itself: their meaning is fixed already.

        Raises
        ------
        ConfigError
            With the feature that differs.
        """
        if encoder.encoded and not encoder.share_embedding:
            return
        own, wanted = self.owners(), encoder.owners
        if len(own) != len(wanted):  # the first batch is refused for that
            return
        for name, mine, theirs in zip(encoder.columns, own, wanted, strict=True):
            if mine != theirs:
                raise ConfigError(
                    f"{type(self).__name__}: {name} {_owner(mine, encoder.columns, name)}, but in "
                    f"the encoder it {_owner(theirs, encoder.columns, name)}: give the model "
                    "share_embedding=encoder.share_embedding"
                )

    def owners(self) -> tuple[int, ...]:
        """For each feature, the index of the feature whose table it looks up."""
        return owners_of(self._config["names"], self._config["share_embedding"] or {})

    def inputs(
        self,
        batch: Batch,
        *,
        threads: bool = False,
        room: Room | None = None,
        draws: Any = None,
        function: str = "logits",
    ) -> dict[str, Any]:
        """Convert a batch, after checks against this model, to arguments of its functions.

        Parameters
        ----------
        batch : Batch
        threads : bool
            Whether a kernel may convert it on all threads, for the thread that runs the functions;
            the results are then tensors.
        room : callable, optional
            (name, shape, dtype) -> tensor: output memory of a kernel that runs on the calling
            thread alone. Arguments that no kernel writes are arrays.
        draws, function
            As in `Model`; a click model draws nothing here, and its functions read the same.

        Raises
        ------
        DataError
            If an id is outside its table, or the numbers of features differ.
        """
        _check_width(batch.dense, self._config["num_dense"])
        placed = self._placed(batch, room) if threads or room else None
        if placed is not None:
            return placed
        batch.check_rows(self._config["rows"], self._config["names"])
        located = self.embeddings.locate(batch.ids)[self._config["dim"]]
        wanted = 3 if self._config["weighted"] else 2 if self._config["pooling"] else 1
        if len(located) != wanted:
            verb = "has" if len(located) > wanted else "lacks"
            raise ConfigError(
                f"the batch {verb} per-sample weights, but the model's weighted is "
                f"{self._config['weighted']}"
            )
        names = ("rows", "offsets", "weights")
        dense = batch.dense if self._config["num_dense"] else _constant(batch)
        arrays = {"dense": dense, **dict(zip(names, located, strict=False))}
        return {**arrays, **self._of_rows(batch)}

    def _placed(self, batch: Batch, room: Room | None) -> dict[str, Any] | None:
        """The arguments by a kernel, for ids in their tables; None where `inputs` will refuse."""
        pools, ids = self._config["pooling"] is not None, batch.ids
        count = ids.shape[1] if isinstance(ids, np.ndarray) else len(ids)
        if count != len(self._config["rows"]):
            return None
        floats = self._of_rows(batch)
        if batch.dense.size:
            floats["dense"] = batch.dense
        if pools:
            placed = self._bag_placing(ids, room)
            tensors = None if placed is None else {**floats, **placed}
        else:
            tensors = self._placing(ids, floats, room) if isinstance(ids, np.ndarray) else None
        if tensors is not None and "dense" not in floats:
            tensors["dense"] = _constant(batch)
        return tensors

    @cached_property
    def _placing(self) -> Placing:
        return Placing(*self._places)

    @cached_property
    def _bag_placing(self) -> BagPlacing:
        return BagPlacing(*self._places, self._config["weighted"])

    @property
    def _places(self) -> tuple[np.ndarray, Any, str]:
        """First row of each feature's table, rows of each, dtype of the result."""
        placement = self._placement
        return placement.first_rows, self._config["rows"], placement.index_dtype

    def rows_read(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """For each storage, the rows that the functions read for what `inputs` returned."""
        return {self._storage: inputs["rows"]}

    @property
    def _storage(self) -> str:
        """Name of the parameter that holds all tables, which are of one width."""
        return f"embeddings.width{self._config['dim']}.weight"

    @property
    def _placement(self) -> Placement:
        return self.embeddings.placements[self._config["dim"]]


def _owner(owner: int, columns: Sequence[str], name: str) -> str:
    whose = columns[owner]
    return "has a table of its own" if whose == name else f"shares that of {whose}"


def _constant(batch: Batch) -> np.ndarray:
    """The dense column of a model without dense features."""
    return np.ones((len(batch), 1), np.float32)


def _check_width(dense: np.ndarray, num_dense: int) -> None:
    if dense.shape[1] != num_dense:
        raise DataError(f"the batch has {dense.shape[1]} dense features, the model {num_dense}")
