# SPDX-License-Identifier: Apache-2.0
"""`History`: what `Trainer.fit` returns, a dict whose epochs show as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

# Scores that one looks at while a model is trained; after the name of a label where there are some.
_SHOWN = ("loss", "auc", "logloss", "rmse", "hr@10", "ndcg@10")


class History(dict[str, Any]):
    """The result of a run; `Trainer.fit` describes its entries.

    ``print`` and a notebook show `frame`.
    """

    @property
    def frame(self) -> pandas.DataFrame:
        """A row for each epoch: rows, seconds, the loss, and the validation scores."""
        import pandas

        rows = [
            {**{k: v for k, v in epoch.items() if k != "valid"}, **_named(epoch.get("valid") or {})}
            for epoch in self["epochs"]
        ]
        return pandas.DataFrame(rows, index=pandas.RangeIndex(1, len(rows) + 1, name="epoch"))

    def __str__(self) -> str:
        return str(self.frame)

    def _repr_html_(self) -> str:
        return self.frame.to_html()


def _named(scores: Mapping[str, Any]) -> dict[str, Any]:
    return {f"valid {name}": value for name, value in scores.items()}


def describe_scores(scores: Mapping[str, Any]) -> str:
    """Return the scores of a validation that a line has room for."""
    shown = {k: v for k, v in scores.items() if k.rpartition(".")[2] in _SHOWN and v is not None}
    return "valid " + ", ".join(f"{name} {value:.4f}" for name, value in shown.items())
