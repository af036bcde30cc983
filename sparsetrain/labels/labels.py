# SPDX-License-Identifier: Apache-2.0
"""`Labels`: all labels of a model or a schema by name, each with its columns of the logits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np

from sparsetrain.errors import ConfigError, DataError
from sparsetrain.labels.label import Kind, Label, label_of
from sparsetrain.system.argument_checks import require_type


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
