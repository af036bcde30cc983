# SPDX-License-Identifier: Apache-2.0
"""What can be set, with which type, range and default.

The models are strict (no text becomes a number here), closed (no unknown key) and frozen. They
name enumerated things and numbers only, so that a settings file never holds code.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _as_tuple(value: Any) -> Any:
    """Accept the lists of TOML and JSON, and one width alone, where the model keeps a tuple."""
    if isinstance(value, int):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Width = Annotated[int, Field(ge=1, le=65_536)]
Widths = Annotated[tuple[Width, ...], BeforeValidator(_as_tuple)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class DataSettings(_Section):
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
    """

    min_count: Annotated[int, Field(ge=1)] = 5
    max_rows: Annotated[int, Field(ge=4)] | None = None
    dense_fill: Finite = 0.0
    missing_flags: bool = False
    treat_as: Literal["auto", "raw", "encoded"] = "auto"
    nan: Literal["error", "missing"] = "error"


class ModelSettings(_Section):
    """The DLRM: width of the embeddings and hidden widths of the two MLPs.

    Attributes
    ----------
    dim : int
        Width of every embedding.
    bottom, top : tuple of int
        Hidden widths; input, `dim` and the last 1 are added.
    """

    dim: Annotated[int, Field(ge=1, le=4096)] = 16
    bottom: Widths = (64,)
    top: Widths = (64,)


class OptimizerSettings(_Section):
    """The update formula and its numbers.

    Attributes
    ----------
    name : {"sgd", "adagrad", "rowwise_adagrad"}
        Formula.
    lr : float
        Learning rate.
    eps, initial : float or None
        Options of the Adagrad formulas; None leaves the formula's own default. `initial` is the
        accumulator before the first step.
    """

    name: Literal["sgd", "adagrad", "rowwise_adagrad"] = "adagrad"
    lr: Positive = 0.02
    eps: Positive | None = None
    initial: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None

    def arguments(self) -> dict[str, float]:
        """Return the keyword arguments that were set, for the formula's constructor."""
        return self.model_dump(exclude={"name"}, exclude_none=True)


class TrainSettings(_Section):
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
    target : {"auto", "cpu", "llvm"}
        What kernels are compiled for: "auto" and "cpu" are this machine, "llvm" any CPU.
    """

    batch_size: Annotated[int, Field(ge=1, le=2**24)] = 128
    epochs: Annotated[int, Field(ge=1)] = 1
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    shuffle: bool = True
    target: Literal["auto", "cpu", "llvm"] = "auto"


class Settings(_Section):
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


# Which options each formula has beside `lr`; a test compares this with the constructors.
FORMULA_OPTIONS: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "adagrad": ("eps", "initial"),
    "rowwise_adagrad": ("eps", "initial"),
}
