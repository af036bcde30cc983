# SPDX-License-Identifier: Apache-2.0
"""Base class of models: features by name, losses, scores and vectors, and initial weights.

A subclass declares the features it reads (`features`) and computes with them. `Trainer` does the
rest: steps, runs, checkpoints, evaluation and prediction. `forward`, `loss`, `query` and `items`
get each feature as the argument of the same name.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import tvm
from tvm.relax.frontend import nn

import sparsetrain.models.functions as exported
from sparsetrain import runtime
from sparsetrain.data.batch import Batch
from sparsetrain.data.encode.encoder import Encoder
from sparsetrain.embedding.bags import ColumnPlacing
from sparsetrain.embedding.layer import Embedding
from sparsetrain.embedding.placing import Room
from sparsetrain.errors import ConfigError, DataError, DataWarning
from sparsetrain.labels import Labels
from sparsetrain.models import summary
from sparsetrain.models.arguments import check_arguments, constructor_of, plain_value
from sparsetrain.models.draws import Draws
from sparsetrain.models.feature_columns import find_features, shared_columns
from sparsetrain.models.features import Dense, Feature, bags_of, require_alike
from sparsetrain.models.fields import Fields
from sparsetrain.models.initialize import Draw, draw_of, initial_params
from sparsetrain.models.label_loss import loss_of_labels
from sparsetrain.models.layers import has_dropout, named_modules
from sparsetrain.system.argument_checks import require_int
from sparsetrain.system.locks import with_builder_lock

if TYPE_CHECKING:
    from scipy.sparse import csr_array
    from typing_extensions import Self

TrainingRows = Literal["event", "user", "pair", "item"]


class Model(nn.Module):
    """Base class of models trained by `Trainer`.

    A subclass constructs its layers, sets `features` (and further attributes below, if its data
    need them), and defines some of these methods:

    - ``forward(...) -> (B, S)``: a logit for each label, or C logits for a label of C classes.
      `evaluate` and `predict` run it, and the default `loss` is computed from it;
    - ``loss(...) -> ()``: replaces the default loss. It may also take ``labels`` and
      ``row_weights``;
    - ``prepare(features, draws)``: features for the loss only, computed on the host, such as
      negatives and masks;
    - ``query(...) -> (B, D)`` and ``items() -> (V, D)``: for retrieval, where the score of an item
      is the dot product of the two vectors;
    - ``learn(chosen)``: constants computed from all choices before the first step, such as counts
      or a graph;
    - ``score_items(features, params)``: for retrieval without vectors, on the host.

    Attributes
    ----------
    kind : str
        Name of the class in saved runs; by default the class's own name.
    features : mapping from str to Ids, Sequence or Dense
        Features that are read from a row, by name; by default the name is the column.
    prepared : mapping from str to Ids, Sequence or Dense
        Features that `prepare` makes; in the loss they replace features of the same name.
    labels : mapping from str to str, int or Label
        Name and kind of each of the T labels, as in a `Schema`.
    label_weights : mapping from str to float
        Weight of each label's loss in the default `loss`; by default 1.
    row_weights : bool
        Whether training batches have a weight for each row, which multiplies the row's loss.
    densify : sequence of str
        Parameters that get a dense gradient, such as ``"item.weight"`` if the loss multiplies by
        the whole table.
    target, seen : str, optional
        For retrieval: the feature with the item to predict, and the feature with items seen before,
        which are not recommended.
    training_rows : {"event", "user", "pair", "item"}
        Content of a training row; see `sparsetrain.data.Interactions.leave_one_out`.

    Examples
    --------
    >>> from tvm.relax.frontend import nn
    >>> from sparsetrain.embedding import Embedding
    >>> from sparsetrain.models import Ids
    >>> class Factors(Model):
    ...     def __init__(self, users, items, dim=8):
    ...         super().__init__()
    ...         self.user = Embedding(users, dim)
    ...         self.item = Embedding(items, dim)
    ...         self.features = {"user": Ids("user"), "item": Ids("item")}
    ...         self.labels = {"rating": "real"}
    ...
    ...     def forward(self, user, item):
    ...         products = self.user(user) * self.item(item)
    ...         return nn.op.sum(products, axis=1, keepdims=True)
    >>> Factors(users=5, items=9).config()
    {'users': 5, 'items': 9, 'dim': 8}
    """

    kind: str
    features: Mapping[str, Feature] = {}
    prepared: Mapping[str, Feature] = {}
    labels: Mapping[str, Any] = {}
    label_weights: Mapping[str, float] = {}
    row_weights = False
    densify: Sequence[str] = ()
    target: str | None = None
    seen: str | None = None
    training_rows: TrainingRows = "event"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # `kind` is not inherited, since a subclass computes something different.
        if "kind" not in vars(cls):
            cls.kind = cls.__name__
        super().__init_subclass__(**kwargs)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Record the arguments for `config`; check them for models of this package."""
        check_arguments(cls, args, kwargs)
        model = super().__new__(cls)
        model._arguments = args, kwargs
        return model

    def __init__(self) -> None:
        self._columns: dict[str, Any] | None = None  # feature -> its position in a batch
        self._all_labels: Labels | None = None
        self._encoder: Encoder | None = None  # the encoder in which features were found
        self._read_by: dict[str, list[str]] = {}  # function -> the features that it takes

    @classmethod
    def for_encoder(cls, encoder: Encoder, **options: Any) -> Self:
        """Return a model for an encoder's columns.

        Parameters
        ----------
        encoder : Encoder
            A fitted encoder, which determines the sizes of tables.
        **options
            Further arguments of the constructor, such as `dim`.

        Warns
        -----
        DataWarning
            If it learns from labels, and reads none of the encoder's numbers.

        Examples
        --------
        >>> model = st.models.DIN.for_encoder(encoder, dim=16)  # doctest: +SKIP
        """
        made = cls(**{**cls._arguments_of(encoder), **options})
        made.warn_of_unread(encoder)
        return made

    def warn_of_unread(self, encoder: Encoder) -> None:
        """Warn if the model learns from labels, and reads none of an encoder's numbers."""
        names = encoder.dense_columns
        if not names or not self.all_labels:
            return
        if not any(isinstance(feature, Dense) for feature in self.features.values()):
            more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
            warnings.warn(
                f"{type(self).__name__} reads no numbers, and ignores the column {names[0]}{more}: "
                "choose a model such as DLRM, read them as categories, or leave them out",
                DataWarning,
                stacklevel=3,
            )

    @classmethod
    def bins_numbers(cls) -> bool:
        """Whether commands and estimators bin numbers for the model by default."""
        return False

    @classmethod
    def _arguments_of(cls, encoder: Encoder) -> dict[str, Any]:
        """Return the constructor's arguments that follow from an encoder."""
        return {"rows": dict(zip(encoder.columns, encoder.rows, strict=True))}

    # --- Saving and display -------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """The constructor's arguments, as plain values."""
        args, kwargs = self._arguments
        bound = constructor_of(type(self)).bind(*args, **kwargs)
        bound.apply_defaults()
        values = dict(bound.arguments)
        for name, parameter in constructor_of(type(self)).parameters.items():
            if parameter.kind is Parameter.VAR_KEYWORD:
                values |= values.pop(name)
        return {name: plain_value(value) for name, value in values.items()}

    def __reduce__(self) -> Any:
        # A model holds no weights, and pickling its TVM objects would crash the process.
        return partial(type(self), **self.config()), ()

    def __repr__(self) -> str:
        return f"<{summary.title_of(self)}>"

    def __str__(self) -> str:
        return summary.as_text(self)

    def _repr_html_(self) -> str:
        return summary.as_html(self)

    # --- Methods that a subclass may define ---------------------------------------------------

    def forward(self, *_: Any, **features: Any) -> nn.Tensor:
        """Map features to logits, (B, S)."""
        raise ConfigError(f"{type(self).__name__} has no forward, so it gives no scores")

    def loss(self, *labels: Any, **inputs: Any) -> nn.Tensor:
        """Return the weighted sum of all labels' mean losses, a () tensor; rows are weighted too.

        A label's kind decides its loss, such as cross-entropy. Means are over all rows; with
        several labels, a missing label has loss 0. `labels` (B,) or (B, T), `row_weights` (B,) and
        the features are passed by name.
        """
        (given,) = labels or (inputs.pop("labels"),)
        row_weights = inputs.pop("row_weights", None)
        logits = exported.check_logits(self, self.forward(**inputs), *exported.batch_extent(inputs))
        return loss_of_labels(logits, given, self.all_labels, row_weights, self.label_weights)

    def prepare(self, features: Mapping[str, Any], draws: Draws) -> Mapping[str, Any]:
        """Return the `prepared` features of a training batch, from the features that were read.

        It runs on the host: `Ids` are arrays (B,), a `Sequence` is a `sparsetrain.data.Ragged`.
        Take random numbers from `draws`, so that a resumed run draws the same numbers.
        """
        return {}

    def prepare_scores(self, features: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return features that replace those read from a batch, if no loss is computed."""
        return {}

    def learn(self, chosen: csr_array) -> Mapping[str, np.ndarray]:
        """Return values of constant parameters, computed from users' choices in `fit`'s rows.

        Parameters
        ----------
        chosen : csr_array (U, V) of bool, rows sorted
            Indexed by ids of the features `user` and `target`; items of `seen` also count as
            chosen. Reserved ids are left out, since they are not items.
        """
        return {}

    def score_items(
        self, features: Mapping[str, Any], params: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Return the scores (B, V) of all items for rows of features, on the host."""
        raise ConfigError(f"{type(self).__name__} has no score_items")

    # --- Labels -------------------------------------------------------------------------------

    @property
    def all_labels(self) -> Labels:
        """The labels by name."""
        if self._all_labels is None or self._all_labels.given != self.labels:
            self._all_labels = Labels(self.labels)
        return self._all_labels

    @property
    def num_logits(self) -> int:
        """Number of columns of the result of `forward`."""
        return self.all_labels.num_logits or 1

    # --- From a batch to arguments ------------------------------------------------------------

    def bind(self, encoder: Encoder) -> None:
        """Find the features among the columns of an encoder.

        Raises
        ------
        ConfigError
            If a column is missing, a table has fewer rows than the encoder's column, or features
            that share a table do not share it in the encoder.
        """
        rows = {name: self.rows_of(feature) for name, feature in self.features.items()}
        self._columns = find_features(type(self).__name__, self.features, rows, encoder)
        self._encoder = encoder

    def inputs(
        self,
        batch: Batch,
        *,
        threads: bool = False,
        room: Room | None = None,
        draws: Draws | None = None,
        function: str = "logits",
    ) -> dict[str, Any]:
        """Check a batch against this model, and convert it to arguments of its functions.

        Parameters
        ----------
        batch : Batch
        threads : bool
            Whether a kernel may convert `Fields` on all threads; pass it only on the thread that
            runs the functions. The results are then tensors. For other features, NumPy is as fast.
        room : callable, optional
            (name, shape, dtype) -> tensor: output memory of a kernel that runs on the calling
            thread alone, for arguments that are sent to a device. Arguments that no kernel writes
            are arrays.
        draws : Draws, optional
            Random numbers for `prepare`, if the model has prepared features.
        function : str
            The function that will get the arguments.

        Raises
        ------
        DataError
            If an id is outside its table, or a feature is missing.
        """
        arrays, done = self._of_rows(batch), frozenset[str]()
        if (threads or room) and self._placed is not None:
            placed = self._placed.placed(batch, arrays, room)
            if placed is not None:
                arrays, done = placed, self._placed.covers
        trains = function == "loss"
        names = self.features if trains else self._features_of(function)
        values = {n: self.read(n, batch) for n in names if n not in done}
        kinds: Mapping[str, Feature] = self.features
        if not trains:
            values |= self.prepare_scores(values)
        elif self.prepared:
            assert draws is not None
            values |= self.prepare(values, draws)
            kinds = {**self.features, **self.prepared}
        by_kernel = [partial(self._id_placing.ids, room=room)] if room else []
        for name, feature in kinds.items():
            if name in values:
                require_alike(name, feature, values)
                arrays |= feature.arrays(name, values[name], self.rows_of(feature), *by_kernel)
        return arrays

    @cached_property
    def _placed(self) -> Fields | None:
        """The `Fields` that a kernel can convert; None if methods of the model must read them."""
        return None if self.prepared or self.defines("prepare_scores") else self.all_fields

    def _features_of(self, function: str) -> list[str]:
        if function not in self._read_by:
            self._read_by[function] = exported.arguments_of(self, function)
        return self._read_by[function]

    @cached_property
    def _id_placing(self) -> ColumnPlacing:
        return ColumnPlacing()

    def read(self, name: str, batch: Batch, *, whole: bool = False) -> Any:
        """Return a feature of a batch, on the host: an array, or a `sparsetrain.data.Ragged`.

        With `whole` a sequence is not cut to its `length`, and a row may have several ids.
        """
        if name not in self.features and self.all_fields is not None:
            return self.all_fields.read_one(name, batch)
        feature, place = self.features[name], self._place(name, batch)
        if whole and feature.tables:
            return bags_of(batch, place)
        return feature.read(name, batch, place)

    def item_range(self) -> range:
        """Return the range of item ids, from which negatives are drawn.

        It excludes the ids of missing and rare values, and ids beyond the encoder's, such as a
        mask. Without an encoder all rows of the table are items.

        Raises
        ------
        ConfigError
            If neither `target` nor `seen` names a feature, or no item has a row of its own.
        """
        name, cls = self.target or self.seen, type(self).__name__
        if name is None:
            raise ConfigError(
                f"{cls} has neither target nor seen: set one to the name of the feature of items"
            )
        if self._encoder is None or self._columns is None:
            return range(self.rows_of(self.features[name]))
        values = self._encoder.features[self._columns[name]].values
        found = range(values.first, values.rows)
        if not found:
            raise ConfigError(
                f"{cls}: no item has a row of its own, since all were rare: give the encoder a "
                "lower min_count"
            )
        return found

    def single_ids(self) -> list[str]:
        """Return the names of features with one id per row, by which rows can be grouped."""
        return [n for name, each in self.features.items() for n in each.single_ids(name)]

    def _place(self, name: str, batch: Batch) -> Any:
        """Return a feature's position in a batch: the encoder's, else its place in `features`."""
        if self._columns is not None:
            return self._columns[name]
        if not self.features[name].tables:
            return None
        ids = [name for name, feature in self.features.items() if feature.tables]
        if len(ids) != batch.num_features:
            raise DataError(
                f"the batch has {batch.num_features} categorical features, the model "
                f"{len(ids)}: {', '.join(ids)}"
            )
        return ids.index(name)

    def _of_rows(self, batch: Batch) -> dict[str, np.ndarray]:
        """Return the arguments that only the loss takes: labels and weights of rows."""
        arrays = {}
        if batch.labels is not None and self.all_labels:
            arrays["labels"] = batch.labels
        if self.row_weights and batch.weights is not None:
            arrays["row_weights"] = batch.weights
        return arrays

    def rows_read(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rows that functions read in each storage, given a result of `inputs`."""
        read: dict[str, list[Any]] = {}
        for name, feature in self._with_tables:
            for storage, ids in feature.rows_read(name, inputs).items():
                read.setdefault(storage, []).append(ids)
        return {
            name: ids[0] if len(ids) == 1 else np.concatenate([*map(_as_array, ids)])
            for name, ids in read.items()
            if name not in self.densify
        }

    @cached_property
    def _with_tables(self) -> list[tuple[str, Feature]]:
        each = {**self.features, **self.prepared}.items()
        return [(name, feature) for name, feature in each if feature.storages(self._rows_of_table)]

    @cached_property
    def all_fields(self) -> Fields | None:
        """The feature that holds all category columns, if there is one."""
        found = (each for each in self.features.values() if isinstance(each, Fields))
        return next(found, None)

    def rows_of(self, feature: Feature) -> int:
        """Return the number of rows of a feature's smallest table; 0 if it has no table."""
        return min(map(self._rows_of_table, feature.tables), default=0)

    def _rows_of_table(self, table: str) -> int:
        if table not in self._table_rows:
            raise ConfigError(
                f"{type(self).__name__} has no Embedding {table!r}, which its features name"
            )
        return self._table_rows[table]

    @cached_property
    def _table_rows(self) -> dict[str, int]:
        """Rows of each `Embedding`, by its name."""
        return {n: layer.rows for n, layer in named_modules(self) if isinstance(layer, Embedding)}

    # --- Functions ----------------------------------------------------------------------------

    @property
    def functions(self) -> list[str]:
        """Names of the functions that `export` returns."""
        own = {name for name, method in exported.METHODS.items() if self.defines(method)}
        if "logits" in own and self.all_labels:
            own.add("loss")
        return [name for name in exported.METHODS if name in own]

    @property
    def learns(self) -> bool:
        """Whether the model defines `learn`; then `fit` first reads all rows once."""
        return self.defines("learn")

    def defines(self, method: str) -> bool:
        """Whether the class defines or overrides a method of `Model`."""
        return getattr(type(self), method, None) not in (None, getattr(Model, method, None))

    @with_builder_lock
    def export(self) -> tvm.IRModule:
        """Return a Relax module with the model's `functions` and a symbolic batch size."""
        functions = self.functions
        if "loss" not in functions and self.defines("score_items"):
            return tvm.IRModule()
        if "loss" not in functions:
            names = ", ".join(self.features) or "..."
            raise ConfigError(
                f"{type(self).__name__} has no loss: define loss(...), or forward({names}) and "
                "labels"
            )
        module, _ = self.export_tvm({name: exported.method_spec(self, name) for name in functions})
        return module

    def buffers(self) -> list[str]:
        """Return the names of parameters that the loss sets without gradients, see `BatchNorm`."""
        return [name for name, param in self.named_parameters() if param.attrs.get("buffer")]

    def constants(self) -> list[str]:
        """Return the names of parameters that no step changes, see `constant`."""
        return [name for name, param in self.named_parameters() if param.attrs.get("constant")]

    @property
    def learned_constants(self) -> list[str]:
        """Names of the constants that `learn` computes; the values of others are given."""
        initial = {
            name: param.attrs["initial"]
            for name, param in self.named_parameters()
            if param.attrs.get("constant")
        }
        return [name for name, value in initial.items() if not isinstance(value, np.ndarray)]

    @property
    def has_dropout(self) -> bool:
        """Whether the loss reads a random key, see `Dropout`."""
        return has_dropout(self)

    # --- Parameters ---------------------------------------------------------------------------

    def initialize(self, seed: int, *, fill: bool = True) -> dict[str, runtime.NDArray]:
        """Return newly initialized parameters by name.

        Weights (out, in) of linear layers are normal with variance ``2 / (in + out)``, biases have
        variance ``1 / out``; norms start as the identity, tables as in `Embedding`. A table in half
        precision gets the float32 numbers, rounded to nearest. Without `fill` the memory stays
        uninitialized, for weights that are about to be loaded.

        Raises
        ------
        ConfigError
            If the seed is not an integer of 0 or more, or tables cannot be trained.
        ResourceError
            If there is no memory for a parameter.
        """
        return self.initialize_some([n for n, _ in self.named_parameters()], seed, fill=fill)

    def initialize_some(
        self, names: Iterable[str], seed: int, *, fill: bool = True
    ) -> dict[str, runtime.NDArray]:
        """Return the parameters with these names, with the same numbers as in `initialize`."""
        return initial_params(self, names, require_int("seed", seed, 0), fill)

    def draw_of_table(self, table: str, shape: Sequence[int]) -> tuple[Draw, str]:
        """Return how a table is initialized, and the name of its random stream."""
        return draw_of(dict(named_modules(self)).get(table), shape), f"{table}.weight"

    def tables(self) -> Mapping[str, dict[str, slice]]:
        """Return, for each storage's parameter name, the rows of each table in it."""
        found: dict[str, dict[str, slice]] = {}
        for feature in {**self.features, **self.prepared}.values():
            found |= feature.storages(self._rows_of_table)
        return {storage: rows for storage, rows in found.items() if storage not in self.densify}

    def check_labelled(self, batch: Batch) -> None:
        """Refuse a batch that this model cannot be trained on.

        Raises
        ------
        DataError
            If the batch lacks labels or row weights, or has row weights that the model would not
            read.
        """
        if self.all_labels:
            if batch.labels is None:
                raise DataError("a batch to train on needs labels: Batch(dense, ids, labels)")
            self.all_labels.check(batch.labels)
        if self.row_weights and batch.weights is None:
            raise DataError(
                "the batch has no weights of rows, but the model's row_weights is True: "
                "Batch(..., weights=w), or an encoder that was fitted with weights=COLUMN"
            )
        if not self.row_weights and batch.weights is not None:
            raise DataError(
                "the batch has weights of rows, which this model would not read: make it with "
                "row_weights=True"
            )

    @property
    def shared_columns(self) -> dict[str, str]:
        """Column -> the earlier column with which it shares a table."""
        return shared_columns(self.features)

    def table_of(self, column: str) -> str:
        """Return the name of the parameter that holds a column's table."""
        found = (feature.table_of(n, column) for n, feature in self.features.items())
        return next(filter(None, found), f"{column}.weight")

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters with their names in exported functions."""
        return super().named_parameters(prefix)


def _as_array(ids: Any) -> np.ndarray:
    return ids if isinstance(ids, np.ndarray) else runtime.as_numpy(ids)
