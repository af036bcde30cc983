# SPDX-License-Identifier: Apache-2.0
"""Whether a model's features share tables as the columns of its encoder share values."""

from __future__ import annotations

from typing import Any

from sparsetrain.errors import ConfigError
from sparsetrain.models.click_model import ClickModel


def check_shared(model: Any, encoder: Any) -> None:
    """Refuse a model that shares other tables than its encoder, by which ids have a meaning.

    Ids that were encoded already have theirs without it, so a model alone may share tables of them.

    Raises
    ------
    ConfigError
        With what to change.
    """
    if encoder is None or not isinstance(model, ClickModel):
        return
    own, its = model.owners(), encoder.owners
    if len(own) != len(its):  # which the first batch is refused for
        return
    for name, ours, wanted in zip(encoder.columns, own, its, strict=True):
        if ours != wanted and not (encoder.encoded and not encoder.share_embedding):
            raise ConfigError(
                f"{type(model).__name__}: {name} {_shares(ours, encoder.columns, name)}, but in "
                f"the encoder it {_shares(wanted, encoder.columns, name)}: give the model "
                "share_embedding=encoder.share_embedding"
            )


def _shares(owner: int, columns: Any, name: str) -> str:
    whose = columns[owner]
    return "has a table of its own" if whose == name else f"shares that of {whose}"
