# SPDX-License-Identifier: Apache-2.0
"""`Rules`: everything that was learnt, as fields. What a row becomes follows from them alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparsetrain.data.encode.dense import EncodedDense, RawDense
from sparsetrain.data.encode.plain_ids import PlainIds
from sparsetrain.data.encode.settings import Settings
from sparsetrain.data.encode.vocabulary import Vocabulary
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.shared_tables import owners_of

CategoryRule = Vocabulary | PlainIds
CategoryRules = tuple[CategoryRule, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Rules:
    """What an encoder was fitted to.

    Attributes
    ----------
    settings : Settings
    encoded : bool
        Whether it was fitted on already encoded data.
    dense_columns, columns : tuple of str
        Names of the dense and the category columns it was fitted on.
    categories : tuple of Vocabulary or PlainIds
        The rule of each category column; of columns that share a table one and the same.
    layout : str
        One line that says which columns were found.
    schema : Schema
        What the columns are called and what holds for one of them alone.
    bags : tuple of bool
        Which category columns held lists; if any did, batches hold bags for all of them.
    unsigned : tuple of str
        Category columns of uint64: a value from 2**63 on is the key of its bits, which is below 0.
    """

    settings: Settings
    encoded: bool
    dense_columns: tuple[str, ...]
    columns: tuple[str, ...]
    categories: CategoryRules
    layout: str
    schema: Schema
    bags: tuple[bool, ...]
    unsigned: tuple[str, ...] = ()

    @property
    def owners(self) -> tuple[int, ...]:
        """For each category column, the position of the one whose table it looks up."""
        return owners_of(self.columns, self.share_embedding)

    @property
    def share_embedding(self) -> dict[str, str]:
        """From each column without a table of its own to the one whose table it looks up."""
        return self.schema.share_embedding

    @property
    def rows(self) -> list[int]:
        """Rows of each category column's table; for raw data the two reserved ones included."""
        return [rule.rows for rule in self.categories]

    @property
    def tables(self) -> dict[str, int]:
        """Rows of each table, once where columns share it, by the column that it is named after."""
        learnt = zip(self.columns, self.categories, strict=False)  # a blank encoder has no rules
        return {name: rule.rows for name, rule in learnt if name not in self.share_embedding}

    @property
    def rare_shares(self) -> list[float | None]:
        """For each category column, which share of its training values was rare, if known."""
        return [rule.rare_share for rule in self.categories]

    @property
    def num_dense(self) -> int:
        """Width of a batch's dense matrix, flags included."""
        return self.dense_rule(self.encoded).width(len(self.dense_columns))

    def dense_rule(self, encoded: bool) -> RawDense | EncodedDense:
        """Return the rule for dense columns of raw or already encoded data."""
        if encoded:
            return EncodedDense()
        return replace(self.settings.raw_dense, linear=self.schema.linear)

    @property
    def has_bags(self) -> bool:
        """Whether batches hold `Ragged` bags rather than one id per feature."""
        return any(self.bags)

    @property
    def has_weights(self) -> bool:
        """Whether the bags have per-sample weights."""
        return any(self.schema.rule(name).weights for name in self.columns)
