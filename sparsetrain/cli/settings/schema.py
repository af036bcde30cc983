# SPDX-License-Identifier: Apache-2.0
"""What can be set, with which type, range and default.

The models are strict (no text becomes a number here), closed (no unknown key) and frozen. They
name enumerated things and numbers only, so that a settings file never holds code.
"""

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from sparsetrain.cli.settings.optimizer import OptimizerSettings as OptimizerSettings
from sparsetrain.cli.settings.section import Finite, Scale, Section


def _as_tuple(value: Any) -> Any:
    """Accept the lists of TOML and JSON, and one width alone, where the model keeps a tuple."""
    if isinstance(value, int):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _as_moment(value: Any) -> Any:
    """Accept the dates of TOML where the model keeps a text."""
    return value.isoformat() if isinstance(value, date) else value


# Settings that decide which rows are used and what is said of them, not what they become.
_NOT_ENCODING = {"warn_unseen", "valid_share", "valid_seed", "valid_from", "time_column"}

Width = Annotated[int, Field(ge=1, le=65_536)]
Widths = Annotated[tuple[Width, ...], BeforeValidator(_as_tuple)]
Steps = Annotated[int, Field(ge=1)]


class DataSettings(Section):
    """How raw columns become numbers and ids.

    Attributes
    ----------
    min_count : int
        Occurrences in the training data below which a category counts as rare.
    max_rows : int or None
        Most rows a table may get; None for as many as there are categories.
    dense_fill : float
        Value that stands in for a missing integer, in raw units.
    missing_flags : bool
        Whether each integer column gets a second one that says where it was missing.
    treat_as : {"auto", "raw", "encoded"}
        Whether values still need encoding; "auto" decides by the column types.
    nan : {"error", "missing"}
        What a NaN in an integer column means.
    schema_file : str or None
        TOML or JSON file that names the columns, where they are not Criteo's.
    weights : str or None
        Column with a factor of 0 or more for each row's loss; None for rows that count alike.
    warn_unseen : float
        Share of rare or unseen ids of a column, in rows to be scored, that is worth a warning.
    valid_share : float or None
        Share of the training rows that is held out for validation, chosen by chance.
    valid_seed : int
        Another seed is another choice of those rows.
    valid_from : int, float, str or None
        First moment of validation: rows from then on are held out. A number, or a date.
    time_column : str or None
        The column that `valid_from` is about; by default the schema's `time`.
    """

    min_count: Annotated[int, Field(ge=1)] = 5
    max_rows: Annotated[int, Field(ge=4)] | None = None
    dense_fill: Finite = 0.0
    missing_flags: bool = False
    treat_as: Literal["auto", "raw", "encoded"] = "auto"
    nan: Literal["error", "missing"] = "error"
    schema_file: str | None = None
    weights: str | None = None
    warn_unseen: Annotated[float, Field(gt=0, le=1)] = 0.5

    valid_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    valid_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    valid_from: Annotated[int | Finite | str, BeforeValidator(_as_moment)] | None = None
    time_column: str | None = None

    def encoding(self) -> dict[str, Any]:
        """Return what `Encoder.fit` and `convert_files` take."""
        return self.model_dump(exclude=_NOT_ENCODING)


class ModelSettings(Section):
    """The DLRM: width of the embeddings, hidden widths of the two MLPs, and what is between them.

    Attributes
    ----------
    dim : int
        Width of every embedding.
    bottom, top : tuple of int
        Hidden widths; input, `dim` and the last 1 are added.
    table_dtype : {"float32", "bfloat16", "float16"}
        What embedding tables are stored in. A half takes half the memory; updates are computed in
        float32 and rounded stochastically.
    interaction : {"dot", "cross"}
        How vectors meet before the top MLP: "dot" multiplies every pair of them, "cross" has layers
        of products of all numbers (DCN V2), as in TorchRec's DLRM_DCN.
    cross_layers : int or None
        Cross layers; None for 3.
    cross_rank : int or None
        Rank of their matrices; None for a quarter of the numbers that are crossed, at most 512.
    """

    dim: Annotated[int, Field(ge=1, le=4096)] = 16
    bottom: Widths = (64,)
    top: Widths = (64,)
    table_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    interaction: Literal["dot", "cross"] = "dot"
    cross_layers: Annotated[int, Field(ge=1, le=100)] | None = None
    cross_rank: Width | None = None

    def problems(self) -> list[tuple[str, str]]:
        """Return the settings that would be ignored, each with what is wrong."""
        return [
            (key, f"{key} is for model.interaction=cross; it is {self.interaction}")
            for key in ("cross_layers", "cross_rank")
            if getattr(self, key) is not None and self.interaction != "cross"
        ]


class TrainSettings(Section):
    """The training loop.

    Attributes
    ----------
    batch_size : int
        Rows per step.
    epochs : int
        Passes over the training data.
    seed : int
        Seed of the initial weights and of the order of the rows.
    shuffle : bool
        Whether rows are shuffled in each epoch.
    target : {"auto", "cpu", "cuda", "llvm"}
        What kernels are compiled for: "cpu" is this machine's, "llvm" any CPU, "cuda" its GPU,
        "auto" the GPU if one can be used, else the CPU.
    precision : {"float32", "bf16", "fp16"}
        What matrix products read: "bf16" and, on CUDA, "fp16" round their operands; sums and
        parameters stay float32.
    loss_scale : float, "dynamic" or None
        What the loss is multiplied by in the reverse pass; None for what the precision needs.
    checkpoint_every : int or None
        Steps between checkpoints; None for the end of each epoch alone.
    keep : int
        Newest checkpoints that stay; the best one stays beside them.
    validate_every : int or None
        Steps between validations; None for the end of each epoch alone.
    monitor : {"logloss", "ne", "auc"}
        The validation score that decides which checkpoint is the best.
    patience : int or None
        Validations without a better score after which training ends; None for never.
    log_every : int
        Steps between two lines of the log.
    tensorboard : bool
        Whether event files for TensorBoard are written beside the log.
    check_numerics : bool
        Whether a step that is not finite is run again to find the first such value.
    """

    batch_size: Annotated[int, Field(ge=1, le=2**24)] = 128
    epochs: Annotated[int, Field(ge=1)] = 1
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    shuffle: bool = True
    target: Literal["auto", "cpu", "cuda", "llvm"] = "auto"
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    loss_scale: Literal["dynamic"] | Scale | None = None
    checkpoint_every: Steps | None = None
    keep: Annotated[int, Field(ge=1, le=10_000)] = 2
    validate_every: Steps | None = None
    monitor: Literal["logloss", "ne", "auc"] = "logloss"
    patience: Annotated[int, Field(ge=1)] | None = None
    log_every: Steps = 100
    tensorboard: bool = False
    check_numerics: bool = False


class Settings(Section):
    """All settings of one training run, resolved.

    Examples
    --------
    >>> Settings().optimizer.name
    'adagrad'
    """

    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    train: TrainSettings = TrainSettings()

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return plain values that fit JSON, section by section."""
        return self.model_dump(mode="json")


def known_keys() -> list[str]:
    """Return every setting as `section.key`."""
    return [
        f"{section}.{key}"
        for section, field in Settings.model_fields.items()
        for key in field.annotation.model_fields  # type: ignore[union-attr]
    ]
