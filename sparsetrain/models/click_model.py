# SPDX-License-Identifier: Apache-2.0
"""What every click model here has: tables of features, inputs of a batch, a loss, weights.

A model of one's own is a subclass that says in `forward` how dense features and embeddings become a
logit; `DLRM` is one. All of `Trainer` works for it, and `st.load(folder, model=CLASS)` reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm.relax.frontend import nn
from tvm.sym import Analyzer

from sparsetrain import runtime
from sparsetrain.ad import bce_with_logits
from sparsetrain.data.shared_tables import owners_of
from sparsetrain.embedding import EmbeddingBagCollection, Table
from sparsetrain.embedding.collection import Placement, Pooling
from sparsetrain.embedding.placing import Placing, Room
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.kernels.table_formats import TableDtype, check_trainable
from sparsetrain.models.config import checked_config
from sparsetrain.models.initialize import fill_normal_, fill_uniform_
from sparsetrain.system.argument_checks import require_int
from sparsetrain.system.locks import with_builder_lock


class ClickModel(nn.Module):
    """Dense features and the embeddings of ids, to a logit for each row.

    A subclass makes its layers, and says in `forward` what they compute. What its constructor takes
    beside the parameters here it adds to `config`; what does not follow the rule of `initialize`,
    such as the weight of a normalisation, it fills there.

    Parameters
    ----------
    rows : sequence of F int
        Rows of each feature's table.
    dim : int
        D, width of all tables.
    num_dense : int
        Dense features of an example. With 0 the model is given a column that is constantly 1.
    pooling : {None, "sum", "mean"}
        None: one id per feature. Otherwise bags of ids, given as `sparsetrain.data.Ragged`.
    weighted : bool
        Bags have per-sample weights; only with ``pooling="sum"``.
    names : sequence of F str, optional
        Names of the features and their tables; ``C1``, ``C2``, ... by default.
    table_dtype : {"float32", "bfloat16", "float16", "int8"}
        What the tables are stored in. Of a half, rows are read into float32 and rounded as they are
        written, stochastically; everything else is float32. With int8 a model can predict, no more;
        see `Trainer.quantized`.
    row_weights : bool
        Batches to train on have a weight for each row, by which its loss is multiplied. The loss is
        still divided by the number of rows. Scores are those of unweighted rows.
    share_embedding : mapping from str to str, optional
        From the name of a feature without a table of its own to that of the feature whose table it
        looks up, as ``encoder.share_embedding`` has it. Both have as many rows.

    Attributes
    ----------
    kind : str
        What a saved model of this class is called: the name of the class, unless it has its own.

    Examples
    --------
    >>> class Linear(ClickModel):
    ...     def __init__(self, rows, dim=4, num_dense=13, **rest):
    ...         super().__init__(rows, dim, num_dense, **rest)
    ...         self.last = nn.Linear(max(num_dense, 1) + len(rows) * dim, 1)
    ...
    ...     def forward(self, dense, embedded):
    ...         flat = nn.op.reshape(embedded, (dense.shape[0], -1))  # (B, F * D)
    ...         return self.last(nn.op.concat([dense, flat], dim=1))  # (B, 1)
    >>> Linear([5, 3], num_dense=2).config()["num_dense"]
    2
    """

    kind: str

    def __init_subclass__(cls, **given: Any) -> None:
        # Never inherited: what a subclass computes is not what its base does.
        if "kind" not in vars(cls):
            cls.kind = cls.__name__
        super().__init_subclass__(**given)

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
    ) -> None:
        given = {
            "rows": rows,
            "dim": dim,
            "num_dense": num_dense,
            "pooling": pooling,
            "weighted": weighted,
            "names": names,
            "table_dtype": table_dtype,
            "row_weights": row_weights,
            "share_embedding": share_embedding,
        }
        self._config = checked_config(type(self).__name__, given)
        self._placing: Placing | None = None
        # NumPy's integers, which a caller may give, are not accepted as extents: take the config's.
        rows, dim, names = (self._config[name] for name in ("rows", "dim", "names"))
        owners = self.owners()
        tables = [Table(names[f], rows[f], dim) for f in range(len(rows)) if owners[f] == f]
        of_features = [names[owner] for owner in owners]
        self.embeddings = EmbeddingBagCollection(tables, of_features, pooling, table_dtype)

    def config(self) -> dict[str, Any]:
        """The constructor's arguments, as plain values."""
        return dict(self._config)

    def __reduce__(self) -> Any:
        # A model holds no values, and to pickle what TVM makes of it ends the process.
        return partial(type(self), **self.config()), ()

    def forward(self, dense: nn.Tensor, embedded: nn.Tensor) -> nn.Tensor:
        """(B, num_dense) floats and (B, F, D) embeddings -> (B, 1) logits."""
        raise ConfigError(f"{type(self).__name__} has no forward(dense, embedded)")

    def logits(
        self,
        dense: nn.Tensor,
        rows: nn.Tensor,
        offsets: nn.Tensor | None = None,
        weights: nn.Tensor | None = None,
    ) -> nn.Tensor:
        """(B, num_dense) floats and located ids -> (B, 1) logits."""
        embedded = self.embed(rows, offsets, weights)
        # Of bags the compiler knows only how many offsets there are, not that they are for B rows.
        if offsets is not None:
            extents = (dense.shape[0], len(self._config["rows"]), self._config["dim"])
            embedded = nn.op.reshape(embedded, extents)
        return self._column(self.forward(dense, embedded), dense)

    def _column(self, logits: nn.Tensor, dense: nn.Tensor) -> nn.Tensor:
        """What `forward` gave, if it is one number for each row."""
        made = type(self).__name__
        if not isinstance(logits, nn.Tensor):
            raise ConfigError(
                f"{made}: forward gave {logits!r:.60}; return the logits, an nn.Tensor (B, 1)"
            )
        shape = list(logits.shape)
        same = len(shape) == 2 and Analyzer().can_prove_equal(shape[0], dense.shape[0])
        if not same or not isinstance(shape[1], int) or shape[1] != 1:
            raise ConfigError(
                f"{made}: forward gave the shape ({', '.join(map(str, shape))}), not (B, 1) with B "
                "as in dense.shape[0]: nn.op.reshape(logits, (dense.shape[0], 1))"
            )
        return logits

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
        """Mean binary cross-entropy of the batch, each row's times its weight, a () tensor."""
        logits = self.logits(dense, rows, offsets, weights)  # (B, 1)
        targets = nn.op.reshape(labels, logits.shape)
        each = nn.op.wrap_nested(bce_with_logits(logits._expr, targets._expr), "bce")  # (B, 1)
        if row_weights is not None:
            each = nn.op.multiply(each, nn.op.reshape(row_weights, logits.shape))
        return nn.op.wrap_nested(tvm.relax.op.mean(each._expr), "loss")

    @with_builder_lock
    def export(self) -> tvm.IRModule:
        """A Relax module with the functions ``loss`` and ``logits`` and a symbolic batch size."""
        index_dtype = self._placement.index_dtype
        inputs = {"dense": nn.spec.Tensor(["B", max(self._config["num_dense"], 1)], "float32")}
        if self._config["pooling"] is None:
            inputs["rows"] = nn.spec.Tensor(["B", len(self._config["rows"])], index_dtype)
        else:
            inputs["rows"] = nn.spec.Tensor(["N"], index_dtype)
            inputs["offsets"] = nn.spec.Tensor(["bags_plus_1"], "int64")
        if self._config["weighted"]:
            inputs["weights"] = nn.spec.Tensor(["N"], "float32")
        of_rows = nn.spec.Tensor(["B"], "float32")
        loss = {"labels": of_rows, **inputs}
        if self._config["row_weights"]:
            loss["row_weights"] = of_rows
        module, _ = self.export_tvm(
            {"loss": _by_name(self.loss, loss), "logits": _by_name(self.logits, inputs)}
        )
        return module

    def initialize(self, seed: int, *, fill: bool = True) -> dict[str, runtime.NDArray]:
        """Fresh parameters by name.

        Linear weights (out, in) are normal with variance ``2 / (in + out)``, biases normal with
        ``1 / out``, a table of V rows uniform within ``sqrt(1 / V)``, as in the reference code. A
        table in half precision gets the numbers nearest to those of one in float32.
        Without `fill` the memory is left as it is, for weights that are about to be read.

        Raises
        ------
        ConfigError
            If the seed is not a whole number of 0 or more.
        ResourceError
            If there is no memory for a parameter.
        """
        seed = require_int("seed", seed, 0)
        if fill:
            check_trainable(self._config["table_dtype"])
        return {
            name: self._initial(name, param, seed, fill) for name, param in self.named_parameters()
        }

    def _initial(self, name: str, param: nn.Parameter, seed: int, fill: bool) -> runtime.NDArray:
        shape = tuple(int(extent) for extent in param.shape)
        tensor = runtime.empty(shape, str(param.dtype), f"parameter {name!r}")
        if not fill:
            return tensor
        view = runtime.as_numpy(tensor, writable=True)
        if name in self.tables():
            for table, rows in self.tables()[name].items():
                part = view[rows]
                fill_uniform_(part, float(np.sqrt(1 / len(part))), seed, f"embeddings.{table}")
        else:
            fill_normal_(
                view, float(np.sqrt((2 if len(shape) > 1 else 1) / sum(shape))), seed, name
            )
        return tensor

    def tables(self) -> Mapping[str, dict[str, slice]]:
        """Parameter name of each storage -> the rows of each table in it."""
        slices = {table: rows for table, (_, rows) in self.embeddings.slices().items()}
        return {self._storage: slices}

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, nn.Parameter]]:
        """Names as in the exported functions, and the parameters."""
        return super().named_parameters(prefix)

    def owners(self) -> tuple[int, ...]:
        """For each feature, the position of the one whose table it looks up."""
        return owners_of(self._config["names"], self._config["share_embedding"] or {})

    def inputs(
        self, batch: Any, *, threads: bool = False, room: Room | None = None
    ) -> dict[str, Any]:
        """Check a batch against this model and turn it into the arguments of its functions.

        Parameters
        ----------
        batch : Batch
        threads : bool
            Whether a kernel may do it, on its threads, for the thread that runs the functions; its
            results are tensors.
        room : callable, optional
            (name, shape, dtype) -> tensor: memory that a kernel may write an argument into, on the
            calling thread alone. What no kernel writes is an array, as without it.

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
            given = "has" if len(located) > wanted else "lacks"
            raise ConfigError(
                f"the batch {given} per-sample weights, but the model's weighted is "
                f"{self._config['weighted']}"
            )
        names = ("rows", "offsets", "weights")
        dense = batch.dense if self._config["num_dense"] else _constant(batch)
        arrays = {"dense": dense, **dict(zip(names, located, strict=False))}
        return {**arrays, **self._of_rows(batch)}

    def _of_rows(self, batch: Any) -> dict[str, np.ndarray]:
        """What a batch has for the loss alone."""
        weights = batch.weights if self._config["row_weights"] else None
        given = {"labels": batch.labels, "row_weights": weights}
        return {name: array for name, array in given.items() if array is not None}

    def check_weights(self, batch: Any) -> None:
        """Refuse a batch to train on whose rows have weights where the model wants none, or lack.

        Raises
        ------
        DataError
            With what to change.
        """
        wanted = self._config["row_weights"]
        if wanted and batch.weights is None:
            raise DataError(
                "the batch has no weights of rows, but the model's row_weights is True: "
                "Batch(..., weights=w), or an encoder that was fitted with weights=COLUMN"
            )
        if not wanted and batch.weights is not None:
            raise DataError(
                "the batch has weights of rows, which this model would not read: make it with "
                "row_weights=True"
            )

    def _placed(self, batch: Any, room: Room | None) -> dict[str, Any] | None:
        """The arguments, for single ids that are inside their tables; None for all others."""
        count, ids = len(self._config["rows"]), batch.ids
        if self._config["pooling"] or isinstance(ids, tuple) or ids.shape[1] != count:
            return None
        if self._placing is None:
            first, dtype = self._placement.first_rows, self._placement.index_dtype
            self._placing = Placing(first, self._config["rows"], dtype)
        floats = {**self._of_rows(batch), "dense": batch.dense}
        given = {name: array for name, array in floats.items() if array.size}
        tensors = self._placing(ids, given, room)
        if tensors is None:
            return None
        return tensors if "dense" in given else {**tensors, "dense": _constant(batch)}

    def columns(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """For each storage that (B, F) ids are looked up in: each feature's first row, and rows.

        `inputs` lets no other ids pass, so columns can be sorted one by one.
        """
        if self._config["pooling"]:
            return {}
        first = self._placement.first_rows.tolist()
        return {self._storage: tuple(zip(first, self._config["rows"], strict=True))}

    def rows_read(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """For each storage, the rows that its functions will read, given what `inputs` returned."""
        return {self._storage: inputs["rows"]}

    @property
    def _storage(self) -> str:
        """Name of the parameter that holds all tables, which are of one width."""
        return f"embeddings.width{self._config['dim']}.weight"

    @property
    def _placement(self) -> Placement:
        return self.embeddings.placements[self._config["dim"]]


def _by_name(
    method: Callable[..., nn.Tensor], inputs: Mapping[str, nn.spec.Tensor]
) -> nn.spec.MethodSpec:
    """A method to export that is given its inputs by name, since those amid them may lack."""
    names, specs = list(inputs), list(inputs.values())

    def named(*given: nn.Tensor) -> nn.Tensor:
        return method(**dict(zip(names, given, strict=True)))

    return nn.spec.MethodSpec(named, names, specs, "plain", "plain")


def _constant(batch: Any) -> np.ndarray:
    """What stands for the dense features of a batch that has none."""
    return np.ones((len(batch), 1), np.float32)


def _check_width(dense: np.ndarray, num_dense: int) -> None:
    if dense.shape[1] != num_dense:
        raise DataError(f"the batch has {dense.shape[1]} dense features, the model {num_dense}")
