# SPDX-License-Identifier: Apache-2.0
"""`Label`: one kind of label as a value, which tells all that the package asks about the kind.

A kind is a class in a file of its own: valid numbers, loss, prediction, scores, and names of
outputs. Schemas, configurations and saved runs hold its plain word, `kind`, which `label_of` turns
back into the value. This package imports no TVM: a loss gets its operators as an argument.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np

from sparsetrain.errors import ConfigError
from sparsetrain.metrics.scores import Scores

Kind = str | int  # a word, such as "binary", with arguments after ":"; a number of classes


class Metrics(Protocol):
    """Scores of a label, fed batch by batch."""

    def update(
        self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None, /
    ) -> None:
        """Add rows: logits (B,), or (B, S) of several, labels (B,), and how much each counts."""

    def result(self) -> Scores:
        """Return the scores of all rows so far, by name."""

    def _checked(self, logits: np.ndarray, labels: np.ndarray, /) -> tuple[np.ndarray, np.ndarray]:
        """Raise for rows that `update` would refuse."""


class Label(ABC):
    """A kind of label. A subclass with a `word` is known by it once its module is imported.

    Attributes
    ----------
    word : str
        Name of the kind in schemas and configurations.
    output : str
        Name of the prediction where this is the only label.
    watched : str
        The score by which a run's best validation is found.
    lower : tuple of str
        Scores of its own that are better if lower.
    scales : bool
        Whether predictions shift and scale as the labels do.
    is_yes_or_no : bool
        Whether labels are 0 or 1, so that rows of 1 can be counted, and ranked in an AUC.
    is_exported : bool
        Whether the C library answers with its predictions.
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
        """Return the label for the `arguments` after the word's colon, "" without.

        Raises
        ------
        ValueError
            If they are none.
        """
        if arguments:
            raise ValueError(f"{cls.word} has no arguments")
        return cls()

    @property
    def kind(self) -> Kind:
        """The plain word that `label_of` turns into this label."""
        return self.word

    @property
    @abstractmethod
    def wanted(self) -> str:
        """The values of a label, for messages."""

    @property
    def num_logits(self) -> int:
        """S, how many numbers a model gives for this label."""
        return len(self.suffixes)

    @abstractmethod
    def bad(self, values: np.ndarray) -> np.ndarray:
        """Return which of some numbers are no such label; NaN is none."""

    @abstractmethod
    def loss(self, op: Any, logits: Any, labels: Any) -> Any:
        """(B, S) logits and (B, 1) labels -> (B, 1) losses.

        `op` holds the operators: ``tvm.relax.frontend.nn.op``, the losses of
        ``sparsetrain.models``, and `constant`, which makes a tensor of an array.
        """

    def predict(self, logits: np.ndarray) -> np.ndarray:
        """(B, S) logits -> (B, S) float32 predictions."""
        return logits

    def metrics(self) -> Metrics:
        """Return scores of no rows yet."""
        made: Metrics = self.scores()
        return made

    def mean_loss(self, scores: Mapping[str, float | int | None]) -> float:
        """Return the mean loss that is among the scores, 0 without rows."""
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


NUMBER = "a number"  # which labels of any number must be
LABELS: dict[str, type[Label]] = {}  # by their words


def label_of(kind: Kind | Label, where: str = "label") -> Label:
    """Return the `Label` of a kind; a `Label` is returned unchanged.

    Raises
    ------
    ConfigError
        If there is no such kind; begins with `where`.
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
