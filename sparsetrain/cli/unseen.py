# SPDX-License-Identifier: Apache-2.0
"""Tells how much of what was scored the model cannot know: rare, unseen and missing categories."""

from typing import TYPE_CHECKING, Any

from sparsetrain.cli.output import note

if TYPE_CHECKING:
    import sparsetrain as st

_NAMED = 5


def tell_unseen(
    dataset: "st.data.Dataset", encoder: "st.data.Encoder | None", limit: float
) -> dict[str, Any]:
    """Warn of the columns whose share of rare or unseen ids is above `limit`.

    A column in which values are as rare in the training data is none of them: of what that data
    would lead to expect as known, more than `limit` must be lost, too.

    Returns
    -------
    dict
        `unseen_share` and `missing_share` of all ids, and `unseen_columns`, the share of each
        column warned of.
    """
    shares = dataset.reserved
    total = sum(share.ids for share in shares)
    rare = encoder.rare_shares if encoder is not None and shares else []
    above = {
        share.column: share.unseen_share
        for share, before in zip(shares, rare, strict=True)
        if min(share.unseen_share, share.lost_share(before or 0.0)) > limit
    }
    if above:
        worst = sorted(above.items(), key=lambda item: -item[1])
        named = ", ".join(f"{name} {share:.0%}" for name, share in worst[:_NAMED])
        more = f" and {len(above) - _NAMED} more" if len(above) > _NAMED else ""
        note(
            f"warning: most categories were rare or never seen in training: {named}{more}; is this "
            "data of the same kind and time, written the same way? (--warn-unseen sets the limit)"
        )
    return {
        "unseen_share": sum(s.unseen for s in shares) / max(total, 1),
        "missing_share": sum(s.missing for s in shares) / max(total, 1),
        "unseen_columns": above,
    }
