# SPDX-License-Identifier: Apache-2.0
"""`Label`: one kind of label as a value, with everything the package needs; `Labels` by name.

A kind is a class in its own file: valid numbers, loss, prediction, scores, and names of outputs.
Schemas, configurations and saved runs store its plain word, `kind`; `label_of` turns that back into
the value. `Labels` are those of a model or a schema, each with its columns of the logits. This
package does not import TVM: a loss gets its operators as an argument.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from itertools import accumulate
from typing import Any, ClassVar, Protocol

import numpy as np

from sparsetrain.errors import ConfigError, DataError
from sparsetrain.metrics.scores import Scores
from sparsetrain.system.argument_checks import require_type

Kind = str | int  # a word such as "binary", with arguments after ":"; or a number of classes


class Metrics(Protocol):
    """Metrics of a label, computed batch by batch."""

    def update(
        self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None, /
    ) -> None:
        """Add rows: logits (B,), or (B, S) if S > 1, labels (B,), and weights (B,)."""

    def result(self) -> Scores:
        """Return the scores of all rows so far, by name."""

    def _checked(self, logits: np.ndarray, labels: np.ndarray, /) -> tuple[np.ndarray, np.ndarray]:
        """Raise for rows that `update` would refuse."""


class Label(ABC):
    """A kind of label. Importing a subclass registers it under its `word`.

    Attributes
    ----------
    word : str
        Name of the kind in schemas and configurations.
    output : str
        Name of the prediction if this is the only label.
    watched : str
        The score that selects a run's best validation.
    lower : tuple of str
        Scores specific to this kind that are better if lower.
    scales : bool
        Whether shifting and scaling the labels shifts and scales predictions equally.
    is_yes_or_no : bool
        Whether labels are 0 or 1, so that an AUC and a count of ones are defined.
    is_exported : bool
        Whether the C library can return its predictions.
    scores : type
        The class of its metrics.

    Examples
    --------
    >>> label_of("quantiles:0.1,0.9").num_logits
    2
    """

    word: ClassVar[str]
    output: ClassVar[str] = "prediction"
    watched: ClassVar[str]
    lower: ClassVar[tuple[str, ...]] = ()
    scales: ClassVar[bool] = False
    is_yes_or_no: ClassVar[bool] = False
    is_exported: ClassVar[bool] = False
    scores: ClassVar[type[Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        LABELS[cls.word] = cls

    @classmethod
    def parse(cls, arguments: str) -> Label:
        """Return the label for the `arguments` after the word's colon; "" if there is no colon.

        Raises
        ------
        ValueError
            If the arguments are invalid.
        """
        if arguments:
            raise ValueError(f"{cls.word} has no arguments")
        return cls()

    @property
    def kind(self) -> Kind:
        """The plain value that `label_of` turns into this label."""
        return self.word

    @property
    @abstractmethod
    def wanted(self) -> str:
        """The valid values of a label, for messages."""

    @property
    def num_logits(self) -> int:
        """S, the number of logits of a model for this label."""
        return len(self.suffixes)

    def bad(self, values: np.ndarray) -> np.ndarray:
        """Return which numbers are not valid labels: by default, those not finite in float32."""
        return not_finite(values)

    @abstractmethod
    def loss(self, op: Any, logits: Any, labels: Any) -> Any:
        """Return (B, 1) losses from (B, S) logits and (B, 1) labels.

        `op` has the operators: ``tvm.relax.frontend.nn.op``, the losses of ``sparsetrain.models``,
        and `constant`, which converts an array to a tensor.
        """

    def predict(self, logits: np.ndarray) -> np.ndarray:
        """Return (B, S) float32 predictions from (B, S) logits."""
        return logits

    def metrics(self) -> Metrics:
        """Return metrics without any rows."""
        made: Metrics = self.scores()
        return made

    def mean_loss(self, scores: Mapping[str, float | int | None]) -> float:
        """Return the mean loss from the scores; 0 without rows."""
        return scores[self.watched] or 0.0

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of the label's name in the names of its S predictions."""
        return ("",)

    def __str__(self) -> str:
        return str(self.kind)

    def describe_bad(self, number: float, shown: object) -> str:
        """Describe the error in a label that is not of this kind."""
        if np.isnan(number):
            return f"the label is null; drop the row or give it {self.wanted}"
        finite = " that is finite in float32" if self.wanted == NUMBER else ""
        return f"the label is {shown}; it must be {self.wanted}{finite}"


def not_finite(values: np.ndarray) -> np.ndarray:
    """Return which numbers are not finite in float32."""
    with np.errstate(over="ignore"):
        return ~np.isfinite(values.astype(np.float32))


NUMBER = "a number"  # `wanted` of labels that can be any number
LABELS: dict[str, type[Label]] = {}  # word -> class


def label_of(kind: Kind | Label, where: str = "label") -> Label:
    """Return the `Label` of a kind; a `Label` is returned unchanged.

    Raises
    ------
    ConfigError
        If there is no such kind; the message begins with `where`.
    """
    if isinstance(kind, Label):
        return kind
    if isinstance(kind, (str, int)) and not isinstance(kind, bool):
        word, _, arguments = (kind if isinstance(kind, str) else f"classes:{kind}").partition(":")
        try:
            found = LABELS[word].parse(arguments)
            if found.kind == kind or isinstance(kind, str):
                return found
        except (KeyError, ValueError):
            pass
    words = ", ".join(repr(word) for word in LABELS if word != "classes")
    raise ConfigError(f"{where} is {kind!r}; it must be {words} or a number of classes, 2 or more")


def named_label(text: str, columns: Collection[str]) -> tuple[str, Label | None]:
    """Return the column that a text names, and the label kind after its colon, if any.

    Examples
    --------
    >>> named_label("visits:count", {"visits"})
    ('visits', Count())
    """
    ends = [at for at, mark in enumerate(text) if mark == ":"] if text not in columns else []
    end = next((at for at in ends if text[:at] in columns), None)
    return (text, None) if end is None else (text[:end], label_of(text[end + 1 :], f"label {text}"))


def guess_label(values: np.ndarray) -> Label:
    """Return the label kind that values look like: binary or real."""
    return label_of("binary" if np.isin(values, (0, 1)).all() else "real")


@cache
def click(name: str = "label") -> Labels:
    """Return a single binary label, the default."""
    return Labels({name: "binary"})


class Labels(Mapping[str, Label]):
    """Labels by name, in order; empty for models that rank items.

    Parameters
    ----------
    kinds : mapping from str to str, int or Label
        Kinds, as plain values or as `Label`.
    where : str
        Name in errors.

    Raises
    ------
    ConfigError
        If `kinds` is not such a mapping.

    Examples
    --------
    >>> Labels({"click": "binary", "delay": "quantiles:0.1,0.9"}).output_names
    ['click', 'delay_0.1', 'delay_0.9']
    """

    def __init__(self, kinds: Mapping[str, Kind | Label], where: str = "labels") -> None:
        words = "a dict, of columns to 'binary', 'real' and so on"
        require_type(where, kinds, Mapping, words)
        for name in kinds:
            require_type(f"{where}: {name!r}", name, str, "the name of a column")
        self.given = dict(kinds)
        self._of = {name: label_of(kind, f"{where}.{name}") for name, kind in kinds.items()}
        ends = [0, *accumulate(label.num_logits for label in self.values())]
        # Label -> its columns among the S logits of all labels.
        self.columns = dict(zip(self._of, map(slice, ends, ends[1:]), strict=True))
        self.num_logits = ends[-1]

    def __getitem__(self, name: str) -> Label:
        return self._of[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def __repr__(self) -> str:
        return f"Labels({self.kinds})"

    @property
    def kinds(self) -> dict[str, Kind]:
        """Name and plain kind of each label, as stored in files."""
        return {name: label.kind for name, label in self.items()}

    @property
    def only(self) -> Label | None:
        """The only label; None if there are several or none."""
        return next(iter(self.values())) if len(self) == 1 else None

    @property
    def is_yes_or_no(self) -> bool:
        """Whether there is one label and it is 0 or 1."""
        return self.only is not None and self.only.is_yes_or_no

    @property
    def watched(self) -> str:
        """Name of the score that selects a run's best validation; for rankings without the k."""
        if not self:
            return "ndcg"
        return self.only.watched if self.only else "loss"

    def check(self, labels: np.ndarray) -> None:
        """Refuse a batch's labels (B,), or (B, T), that are not of these kinds.

        Raises
        ------
        DataError
            If their number or a value is wrong; the message names the expected labels, or the first
            row with an invalid label.
        """
        count = labels.shape[1] if labels.ndim == 2 else 1
        if count != len(self):
            raise DataError(
                f"the batch has {count} labels, but the model has {len(self)}: {', '.join(self)}"
            )
        for values, (name, label) in zip(np.atleast_2d(labels.T), self.items(), strict=True):
            bad = label.bad(values)
            if count > 1:
                bad &= ~np.isnan(values)
            if bad.any():
                row = int(np.argmax(bad))
                where = f"labels: row {row}" + (f", {name}" if count > 1 else "")
                raise DataError(f"{where}: {label.describe_bad(values[row], f'{values[row]:g}')}")

    def predictions(self, logits: np.ndarray) -> np.ndarray:
        """Return (B, S) float32 predictions, or (B,) if S is 1, from (B, S) logits."""
        found = [label.predict(logits[:, self.columns[name]]) for name, label in self.items()]
        joined = found[0] if len(found) == 1 else np.concatenate(found, axis=1)
        return joined[:, 0] if joined.shape[1] == 1 else joined

    @property
    def output_names(self) -> list[str]:
        """Names of the prediction columns: labels, with suffixes for classes or levels."""
        if not self:
            return ["prediction"]
        names = [self.only.output] if self.only else [*self]
        labels = zip(names, self.values(), strict=True)
        return [f"{name}{suffix}" for name, label in labels for suffix in label.suffixes]

    def check_weights(self, weights: Mapping[str, Any]) -> None:
        """Refuse loss weights that name no label."""
        for name in weights:
            if name not in self:
                raise ConfigError(
                    f"label_weights: there is no label {name!r}: labels are {', '.join(self)}"
                )
