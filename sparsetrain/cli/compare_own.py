# SPDX-License-Identifier: Apache-2.0
"""`compare` on tables of one's own: of so many rows, of click logs, of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sparsetrain.errors import ConfigError

if TYPE_CHECKING:
    import sparsetrain as st


class Own(NamedTuple):
    """What `--tables`, `--from-data`, `--from-run` and `--schema` say, each or None."""

    rows: str | None
    data: Path | None
    run: Path | None
    schema: str | None

    def __bool__(self) -> bool:
        return any((self.rows, self.data, self.run))

    def check(self, swept: bool, formulas: Sequence[str] | None) -> None:
        """Refuse what does not go together.

        Raises
        ------
        ConfigError
            It names the options.
        """
        if self and swept:
            raise ConfigError("your own tables are no sweep: leave out --sweep and --full")
        if self and formulas and len(formulas) > 1:
            raise ConfigError("--formula: one of them for your own tables")
        others = self.run is not None or self.rows is not None
        if self.schema is not None and (self.data is None or others):
            raise ConfigError("--schema names the columns of --from-data, and goes with that alone")

    def measured_as(
        self, base: st.compare.Case, batch_size: int, formula: bool
    ) -> st.compare.Tables:
        """Return each table as a case, and all of them as a storage; `formula`: it was asked for.

        Raises
        ------
        SparsetrainError
            If the data or the run cannot be read.
        """
        import sparsetrain as st

        return st.compare.with_storage(self._found(base, batch_size, formula))

    def _found(self, base: st.compare.Case, batch_size: int, formula: bool) -> st.compare.Tables:
        import sparsetrain as st

        if self.rows is not None:
            return st.compare.Tables(st.compare.tables_of_rows(_rows_of(self.rows), base), {})
        if self.run is not None:
            return st.compare.tables_of_run(
                self.run, base, batch_size, data=self.data, formula=formula
            )
        assert self.data is not None
        if self.schema is None:
            return st.compare.tables_of_data(self.data, base, batch_size)
        data = str(self.data)
        encoder = st.data.Encoder.fit(data, schema_file=self.schema)
        return st.compare.tables_of_data(data, base, batch_size, encoder=encoder)


def _rows_of(text: str) -> dict[str, int]:
    """Names and rows of tables that are written as numbers with commas."""
    try:
        return {f"T{n}": int(part) for n, part in enumerate(text.split(","), start=1)}
    except ValueError:
        raise ConfigError(f"--tables {text}: rows of each table, such as 1000,50000") from None
