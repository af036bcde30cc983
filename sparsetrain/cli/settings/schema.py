# SPDX-License-Identifier: Apache-2.0
"""Settings of a training run: sections, types, ranges, defaults, help and command-line flags.

Sections are strict (text is never converted to a number), closed (no unknown keys) and frozen.
Values are numbers, text and enumerated names, so a settings file never holds code.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cache
from inspect import Parameter, signature
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator, Field, create_model
from pydantic_core import PydanticCustomError

from sparsetrain.cli.output import note
from sparsetrain.cli.settings.fields import Count, Finite, Scale, Section, Seed, setting
from sparsetrain.cli.settings.model_class import canonical, is_own, model_class
from sparsetrain.cli.settings.optimizer import OptimizerSettings as OptimizerSettings
from sparsetrain.errors import ConfigError


def _as_tuple(value: Any) -> Any:
    """Convert lists of TOML and JSON, or a single width, to a tuple."""
    if isinstance(value, int):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _as_names(value: Any) -> Any:
    """Convert lists of TOML and JSON, or `a,b` from a command line, to a tuple of names."""
    return tuple(value.split(",")) if isinstance(value, str) else _as_tuple(value)


def _as_counts(value: Any) -> Any:
    """Convert a number, or `10,20` from a command line, to a tuple of numbers."""
    names = _as_names(value)
    return tuple(int(n) if isinstance(n, str) and n.isdigit() else n for n in names)


def _as_text(value: Any) -> Any:
    """Convert dates of TOML to text."""
    return value.isoformat() if isinstance(value, date) else value


# Settings that select rows, control warnings or make a schema, but do not affect the encoding of
# rows under that schema.
_NOT_ENCODING = {"warn_unseen", "valid_share", "valid_seed", "valid_from", "time_column"}
_NOT_ENCODING |= {"window", "label", "dense", "category", "ignore", "task", "user", "item"}

NumberKind = Literal[
    "best", "scaled", "quantiles", "logarithms", "piecewise", "binned", "periodic", "autodis"
]
Width = Annotated[int, Field(ge=1, le=65_536)]
Widths = Annotated[tuple[Width, ...], BeforeValidator(_as_tuple)]
Names = Annotated[tuple[str, ...], BeforeValidator(_as_names)]
Window = Literal["hour", "day", "week", "month"] | Annotated[int | Finite, Field(gt=0)]
Moment = Annotated[int | Finite | str, BeforeValidator(_as_text)]


class DataSettings(Section):
    """Encoding of raw columns as numbers and ids, and the rows held out for validation."""

    min_count: Count = setting(
        5,
        "Categories rarer than this in the training data share one row.",
        flag="--min-count",
    )
    max_rows: Annotated[int, Field(ge=4)] | None = setting(
        None, "Most rows of a table; other values share rows by a hash.", flag="--max-rows"
    )
    dense_fill: Finite = setting(0.0, "Replaces a missing integer, in raw units.")
    missing_flags: bool = setting(
        False, "Whether each integer column gets a second one that marks missing values."
    )
    treat_as: Literal["auto", "raw", "encoded"] = setting(
        "auto", 'Whether values still need encoding; "auto" decides by the column types.'
    )
    nan: Literal["error", "missing"] = setting("error", "Meaning of NaN in an integer column.")
    schema_file: str | None = setting(
        None,
        "TOML or JSON file with the column names, if they are not Criteo's.",
        flag="--schema",
        metavar="FILE",
    )
    label: str | None = setting(
        None,
        "Column to predict; the roles of all other columns are inferred from the rows. "
        "COLUMN:KIND for labels other than 0/1 and numbers: visits:count, genre:classes:5.",
        flag="--label",
        metavar="COLUMN",
    )
    dense: Names = setting(
        (),
        "Columns to read as numbers, overriding --label's inference.",
        flag="--dense",
        metavar="COLUMNS",
    )
    category: Names = setting(
        (),
        "Columns to read as categories, overriding --label's inference.",
        flag="--category",
        metavar="COLUMNS",
    )
    ignore: Names = setting(
        (),
        "Columns to leave out, overriding --label's inference.",
        flag="--ignore",
        metavar="COLUMNS",
    )
    numbers: NumberKind = setting(
        "best",
        "Further use of numbers, besides scaled inputs: quantile buckets or powers of 2, with a "
        "table row each; or learnt vectors from binned, piecewise linear, periodic or softly "
        "discretized (AutoDis) features. Best is binned, if the model supports it.",
        flag="--numbers",
    )
    weights: str | None = setting(
        None,
        "Column with a factor for each row's loss, 0 or more.",
        flag="--weights",
        metavar="COLUMN",
    )
    warn_unseen: Annotated[float, Field(gt=0, le=1)] = setting(
        0.5,
        "Share of rare or unseen ids in a column of scored rows that is worth a warning.",
        flag="--warn-unseen",
    )
    valid_share: Annotated[float, Field(gt=0, lt=1)] | None = setting(
        None,
        "Share of the training rows held out for validation, chosen at random.",
        flag="--valid-share",
    )
    valid_seed: Seed = setting(0, "Seed of that random choice.")
    valid_from: Moment | None = setting(
        None,
        "Hold out the training rows from this time on for validation: a number or a date.",
        flag="--valid-from",
        metavar="TIME",
    )
    time_column: str | None = setting(
        None,
        "Time column for --valid-from, --window and the order of interactions; by default the "
        "schema's, or one called time or timestamp.",
        flag="--time-column",
        metavar="COLUMN",
    )

    window: Window | None = setting(
        None,
        "Score each window of time, then train on it, with rows for its new values: hour, day, "
        "week, month, or a span in the units of --time-column.",
        flag="--window",
        metavar="UNIT",
    )

    task: Literal["labels", "ranking"] = setting(
        "labels",
        "Learn labels of rows, or to rank items from users' interactions. In a ranking, each "
        "user's last interaction is the test and the one before it the validation, unless "
        "--valid-share (a share of each user's, for both), --valid-from, or --valid and --test "
        "are given.",
        flag="--task",
    )
    user: str | None = setting(
        None, "Column of the user, for --task ranking.", flag="--user", metavar="COLUMN"
    )
    item: str | None = setting(
        None, "Column of the item, for --task ranking.", flag="--item", metavar="COLUMN"
    )

    def encoding(self) -> dict[str, Any]:
        """Return the keyword arguments of `Encoder.fit` and `convert_files`."""
        options = self.model_dump(exclude=_NOT_ENCODING)
        if self.numbers in ("periodic", "autodis"):
            options |= {"numbers": "scaled", "missing_flags": True}
        return {"schema": options.pop("schema_file"), **options}

    def of_model(self, encoder: Any) -> dict[str, str]:
        """Return the model's argument `numbers`, unless it follows from the encoder."""
        follows = "best", "quantiles", "logarithms", *(() if encoder.schema.bins else ("scaled",))
        return {} if self.numbers in follows else {"numbers": self.numbers}

    def problems(self) -> list[tuple[str, str]]:
        """Return settings that would be ignored, each with the reason."""
        if self.window is not None and (self.valid_share or self.valid_from) is not None:
            return [
                ("window", "each window is already held out: remove --valid-share and --valid-from")
            ]
        if self.task == "ranking":
            unused = ("label", "schema_file", "weights")
            return [
                (key, "--task ranking reads only users and items; remove this setting")
                for key in unused
                if getattr(self, key) is not None
            ]
        if self.user or self.item:
            return [("user" if self.user else "item", "this setting needs --task ranking")]
        needing = [key for key in ("dense", "category", "ignore") if getattr(self, key)]
        if self.label is None:
            return [(key, f"--{key} needs --label; a schema file names columns") for key in needing]
        if self.schema_file is not None:
            return [("label", "--label infers a schema, but --schema gives one: remove one")]
        return []


class ModelSettings(Section):
    """The model; `settings_of` adds the arguments of its constructor."""

    name: Annotated[str, BeforeValidator(canonical)] = setting(
        "dlrm",
        "Model, as `sparsetrain models` lists them with their settings; or MODULE:CLASS of your "
        "own, in a module that is installed or in the current folder.",
        flag="--model",
        metavar="NAME|MODULE:CLASS",
    )
    table_dtype: Literal["float32", "bfloat16", "float16", "int8"] = setting(
        "float32",
        "Type in which embedding tables are stored. Half precision takes half the memory, int8 a "
        "quarter and 4 bytes a row, with rowwise_adagrad or sgd; updates are computed in float32 "
        "and rounded stochastically.",
        flag="--table-dtype",
    )

    @property
    def has_labels(self) -> bool:
        """Whether the model learns from labels; if not, it ranks items."""
        import sparsetrain as st

        return model_class(self.name).forward is not st.models.Model.forward

    @property
    def own_class(self) -> Any:
        """The class of a user's own model, for `st.load`; None for a model of this package."""
        return model_class(self.name) if is_own(self.name) else None

    def for_encoder(self, encoder: Any, interactions: int = 1, **more: Any) -> Any:
        """Construct the model for an encoder; a user's own class has its own `for_encoder`."""
        if self.own_class is None:
            made = self.build(**{**encoder.model_arguments, **more}, interactions=interactions)
            made.warn_of_unread(encoder)
            return made
        options = self.model_dump(exclude={"name"}, exclude_unset=True) | more
        try:
            return self.own_class.for_encoder(encoder, **options)
        except TypeError as error:  # wrong arguments
            raise ConfigError(
                f"--model {self.name}: for_encoder fails: {error}; override it if the constructor "
                "has no argument rows, or set arguments with --set model.NAME=VALUE"
            ) from error

    def completed(self, schema: Any) -> Any:
        """Return an inferred schema, with the tables that columns of the model share."""
        if self.own_class is not None or not self._columns():
            return schema
        columns = schema.categories or ()
        shared = self.build([2] * len(columns), columns).shared_columns
        for name, other in shared.items():
            note(f"{name} shares the table of {other}")
        return schema.with_shared(shared)

    def build(
        self, rows: Sequence[int], names: Sequence[str], interactions: int = 1, **arguments: Any
    ) -> Any:
        """Construct the model; it gets only the rows of each column if it is not a click model."""
        import sparsetrain as st

        options, cls = self.model_dump(exclude={"name"}), model_class(self.name)
        if issubclass(cls, st.models.ClickModel):
            # If an option is None, the encoder decides, for example on the pooling of lists.
            own = {n: v for n, v in options.items() if v is not None or n not in arguments}
            return cls(rows, names=names, **{**arguments, **own})
        if (dtype := options.pop("table_dtype")) != "float32":
            raise ConfigError(f"model.table_dtype is {dtype!r}; {self.name} needs float32 tables")
        sizes = dict(zip(names, rows, strict=True))
        # An optional column is used if the data have a column of its name.
        options = {n: n if v is None and n in sizes else v for n, v in options.items()}
        named = {n: options[n] for n in self._columns() if n in options}
        lacking = [n for n, column in named.items() if n != "label" and column not in sizes]
        if lacking:
            raise ConfigError(
                f"model.{lacking[0]} is {named[lacking[0]]!r}, which is not a category column; "
                f"there are {', '.join(sizes)}; choose one with --set model.{lacking[0]}=COLUMN, "
                "or read a number as a category with --category COLUMN"
            )
        made: Any = cls
        if "interactions" in signature(cls.__init__).parameters:
            options["interactions"] = interactions
        return made(sizes, **options)

    def _columns(self) -> dict[str, str]:
        """Return the values of all text arguments of the model; these name columns."""
        import sparsetrain as st

        options = st.models.options_of(model_class(self.name))
        of_text = {n for n, option in options.items() if option.type in (str, str | None)}
        return {n: v for n, v in self if n in of_text and isinstance(v, str)}

    def check(self) -> None:
        """Raise `ConfigError` for arguments that are incompatible."""
        if self.own_class is not None:
            return
        weights = getattr(self, "label_weights", None)
        by_column = [v for _, v in self if isinstance(v, Mapping) and v is not weights]
        named = {name for values in by_column for name in values} - {"*"}
        columns = [*self._columns().values(), *sorted(named)]
        labels: Any = {"labels": dict.fromkeys(weights, "binary")} if weights else {}
        self.build([2] * (len(columns) or 2), columns or ["C1", "C2"], num_dense=1, **labels)


def _as_score(value: Any) -> Any:
    """Accept a score, possibly preceded by the name of a label."""
    import sparsetrain as st

    if isinstance(value, str):
        name, at, k = value.rpartition(".")[2].partition("@")
        names = st.labels.watched_names()
        if f"{name}{at and '@K'}" not in names or (at and not re.fullmatch(r"[1-9]\d*", k)):
            raise PydanticCustomError(
                "score", "must be a score: {names}", {"names": ", ".join(names)}
            )
    return value


ARITHMETIC = ("precision", "loss_scale")  # settings of `TrainSettings`, arguments of a trainer


class TrainSettings(Section):
    """The training loop."""

    batch_size: Annotated[int, Field(ge=1, le=2**24)] = setting(
        128, "Rows per step.", flag="--batch-size"
    )
    epochs: Count = setting(1, "Passes over the training data.", flag="--epochs")
    seed: Seed = setting(0, "Seed of initial weights and row order.", flag="--seed")
    shuffle: bool = setting(True, "Whether rows are shuffled in each epoch.")
    target: Literal["auto", "cpu", "cuda", "llvm"] = setting(
        "auto",
        'Device: "cpu" is this machine\'s, "llvm" any CPU, "cuda" its GPU, "auto" the GPU if it '
        "can be used, else the CPU.",
        flag="--target",
    )
    precision: Literal["float32", "bf16", "fp16"] = setting(
        "float32",
        "Operands of matrix products; sums and parameters stay float32. fp16 needs CUDA.",
        flag="--precision",
    )
    loss_scale: Literal["dynamic"] | Scale | None = setting(
        None,
        "Factor of the loss in the reverse pass; by default chosen by --precision.",
        flag="--loss-scale",
        metavar="NUMBER|dynamic",
    )
    checkpoint_every: Count | None = setting(
        None, "Steps between checkpoints, besides one after each epoch.", flag="--checkpoint-every"
    )
    keep: Annotated[int, Field(ge=1, le=10_000)] = setting(
        2, "Number of newest checkpoints to keep; the best one is kept as well."
    )
    validate_every: Count | None = setting(
        None, "Steps between validations, in addition to each epoch's end.", flag="--validate-every"
    )
    validate_epochs: Count = setting(
        1, "Epochs between validations; the last is validated too.", flag="--validate-epochs"
    )
    monitor: Annotated[str, BeforeValidator(_as_score)] | None = setting(
        None,
        "Validation score that decides which checkpoint is the best: logloss, ne, auc, gauc, "
        "calibration, accuracy, rmse, mae or loss; of several labels NAME.auc and so on; of a "
        "ranking hr, ndcg, mrr, recall, precision or map at a K of --k, such as ndcg@10.",
        flag="--monitor",
    )
    group_by: str | None = setting(
        None, "Feature, such as the user, by which validations group rows for gauc."
    )
    patience: Count | None = setting(
        None,
        "Stop after this many validations without a better score.",
        flag="--patience",
    )
    reduce_lr: Annotated[float, Field(gt=0, lt=1)] | None = setting(
        None, "Factor of the learning rate after validations without a better score."
    )
    reduce_lr_patience: Count = setting(
        1, "Validations without a better score before the rate falls."
    )
    shard: Literal["auto", "table", "row"] = setting(
        "auto",
        'Where several processes keep tables: each on one ("table"), by rows on all ("row"), or '
        'large ones by rows ("auto").',
    )
    parts: Count | None = setting(
        None,
        "Parts into which several processes cut a batch; as many, or a half, a quarter and so on, "
        "can resume the run. By default the number of processes.",
    )
    k: Annotated[tuple[Count, ...], BeforeValidator(_as_counts)] = setting(
        (10,), "Cutoffs of ranking scores: 10,20.", flag="--k"
    )
    negatives: Count | str | None = setting(
        None,
        "In the final scores, rank items among this number of drawn negatives, or among a file's "
        "negatives (lines with a user and its negatives); by default among all items.",
        flag="--negatives",
        metavar="NUMBER|FILE",
    )
    log_every: Count = setting(100, "Steps between two lines of the log.")
    tensorboard: bool = setting(False, "Whether event files for TensorBoard are written.")
    check_numerics: bool = setting(
        False,
        "Run a step that is not finite again, to find the first such value.",
        flag="--check-numerics",
    )

    @property
    def arithmetic(self) -> dict[str, Any]:
        """Arguments of a trainer that set the precision of its programs."""
        return {name: getattr(self, name) for name in ARITHMETIC}


class Settings(Section):
    """All settings of one training run, except the arguments of its model."""

    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    train: TrainSettings = TrainSettings()

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return plain values that fit JSON, section by section."""
        return self.model_dump(mode="json")


@cache
def settings_of(model: str) -> type[Settings]:
    """Return the settings class for a model; its section `model` has the model's arguments.

    Raises
    ------
    ConfigError
        If there is no such model.
    """
    import sparsetrain as st

    fields: dict[str, Any] = {
        name: (
            Any if is_own(model) else _type_of(option.type),
            setting(
                None if option.default is Parameter.empty else option.default, option.description
            ),
        )
        for name, option in st.models.options_of(model_class(model)).items()
        if name not in ModelSettings.model_fields
    }
    section = create_model("ModelSettings", __base__=ModelSettings, **fields)
    return create_model("Settings", __base__=Settings, model=(section, section(name=model)))


# Type of an argument -> type of the setting, which restricts its values.
_TYPES: dict[Any, Any] = {
    int: Width,
    Mapping[str, int]: Mapping[str, Width],
    Sequence[int]: Widths,
    float: Annotated[float, Field(ge=0, lt=1)],  # rates of dropout
}


def _type_of(type_: Any) -> Any:
    if get_origin(type_) in (Union, UnionType):
        return Union[tuple(map(_type_of, get_args(type_)))]  # noqa: UP007  (of a tuple)
    return _TYPES.get(type_, type_)
