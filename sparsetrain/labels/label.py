# SPDX-License-Identifier: Apache-2.0
"""`Label`: one kind of label as a value, with everything the package needs to know about it.

A kind is a class in its own file: valid numbers, loss, prediction, scores, and names of outputs.
Schemas, configurations and saved runs store its plain word, `kind`; `label_of` turns that back into
the value. This package does not import TVM: a loss gets its operators as an argument.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np

from sparsetrain.errors import ConfigError
from sparsetrain.metrics.scores import Scores

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

    @abstractmethod
    def bad(self, values: np.ndarray) -> np.ndarray:
        """Return which numbers are not valid labels; NaN never is."""

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
