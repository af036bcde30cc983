# SPDX-License-Identifier: Apache-2.0
"""One source as two: no row in both, none lost, the same each time, whatever the source is."""

from datetime import datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pytest

from sparsetrain.data import Dataset, Encoder, Schema, convert_files, split_share, split_time
from sparsetrain.errors import ConfigError, DataError
from tests.data.criteo_tables import encoded_table, write

WIDE = 1000
SCHEMA = Schema(dense=("row",), categories=("site",), time="hour")


def hours() -> pa.Table:
    """Rows that know their number, in the order of their hours but for the middle ones."""
    number = np.arange(WIDE)
    hour = np.where((number > 400) & (number < 600), 900 - number, number) // 50
    columns = {"label": number % 2, "row": number, "site": number % 7, "hour": hour}
    return pa.table(columns)


def as_parquet(data, folder):
    return write(folder / "a.parquet", data, group=100)


def as_text(data, folder):
    csv.write_csv(data, folder / "a.csv")
    return str(folder / "a.csv")


MAKE = {"table": lambda data, _: data, "parquet": as_parquet, "text": as_text}


def rows_of(half) -> list[int]:
    """Return the numbers of the rows, from their dense column."""
    encoder = Encoder.fit(half, schema=SCHEMA)
    found = [batch.dense[:, 0] for batch in Dataset(half, encoder).batches(100)]
    return np.round(np.exp(np.concatenate(found)) - 3).astype(int).tolist()


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())
def test_a_share_is_the_same_each_time_and_in_one_half_only(make, tmp_path):
    data = make(hours(), tmp_path)
    train, valid = (rows_of(h) for h in split_share(data, 0.2, seed=1, schema=SCHEMA))
    assert sorted(train + valid) == list(range(WIDE))
    assert 150 < len(valid) < 250
    assert rows_of(split_share(data, 0.2, seed=1, schema=SCHEMA)[1]) == valid
    assert rows_of(split_share(data, 0.2, seed=2, schema=SCHEMA)[1]) != valid


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())
@pytest.mark.parametrize("at", [1, 7, 9, 19])
def test_a_moment_divides_into_before_and_from_then_on(make, at, tmp_path):
    halves = split_time(make(hours(), tmp_path), "hour", at, schema=SCHEMA)
    found, hour = [sorted(rows_of(half)) for half in halves], hours()["hour"].to_numpy()
    assert found == [np.flatnonzero(hour < at).tolist(), np.flatnonzero(hour >= at).tolist()]
    for half, rows in zip(halves, found, strict=True):
        assert half.num_rows in (None, len(rows))


@pytest.mark.parametrize("make", [pa.Table.to_pandas, pa.Table.to_pydict], ids=["frame", "dict"])
def test_the_time_column_of_rows_in_memory_needs_no_schema(make):
    rows = pa.table({"label": [0, 1, 0], "I1": [1, 2, 3], "C1": [4, 5, 6], "day": [7, 8, 9]})
    train, valid = split_time(make(rows), "day", 9)
    assert (train.num_rows, valid.num_rows) == (2, 1)


START = datetime(2014, 10, 21)
TIMES = {
    "timestamps": pa.timestamp("ns"),
    "timestamps with a zone": pa.timestamp("ms", tz="UTC"),
    "days": pa.date32(),
    "text": pa.string(),
}


@pytest.mark.parametrize("type_", TIMES.values(), ids=TIMES.keys())
@pytest.mark.parametrize(
    "at", ["2014-10-31", START + timedelta(days=10), datetime(2014, 10, 31, tzinfo=timezone.utc)]
)
def test_dates_and_timestamps_are_moments(type_, at, tmp_path):
    days = pa.array([START + timedelta(days=int(n) // 50) for n in range(WIDE)])
    data = hours().set_column(3, "hour", days.cast(type_))
    for source in (data, as_parquet(data, tmp_path)):
        train, valid = split_time(source, "hour", at, schema=SCHEMA)
        assert (rows_of(train), rows_of(valid)) == ([*range(500)], [*range(500, WIDE)])


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())
@pytest.mark.parametrize("at, sign", [(-1, "<"), (20, ">=")])
def test_a_half_without_rows_is_refused(make, at, sign, tmp_path):
    with pytest.raises(DataError, match=f"no row has hour {sign} {at}$"):
        split_time(make(hours(), tmp_path), "hour", at, schema=SCHEMA)


def test_halves_of_encoded_rows_are_not_judged_by_statistics_of_the_whole(tmp_path):
    path = write(tmp_path / "a.parquet", encoded_table(), group=60)
    whole = Encoder.fit(path)
    rows = []
    for half in split_share(path, 0.3):
        own = Encoder.fit(half)  # its largest ids may be smaller than the row group's
        rows.append(sum(len(batch) for batch in Dataset(half, own).batches(8)))
        list(Dataset(half, whole).batches(8))
    assert sum(rows) == encoded_table().num_rows


def test_a_half_of_encoded_rows_may_begin_with_row_groups_that_lost_theirs(tmp_path):
    path = write(tmp_path / "a.parquet", encoded_table(), group=1)
    halves = split_share(path, 0.5)
    assert [half.parts[0].num_rows for half in halves].count(0) == 1
    whole = Encoder.fit(path)
    for half in halves:
        assert len(Encoder.fit(half).rows) == len(whole.rows)


REFUSED = {
    "no share": (
        lambda data: split_share(data, 1),
        ConfigError,
        "share is 1; it must be a number between",
    ),
    "no row left": (
        lambda data: split_share(data.slice(0, 1), 0.5),
        DataError,
        "table: a share of 0.5 of 1 rows leaves one part of",
    ),
    "no column": (lambda data: split_time(data, "day", 1), DataError, "column day: the time colum"),
    "no moment": (
        lambda data: split_time(data, "hour", "soon"),
        ConfigError,
        "'soon' is not a momen",
    ),
    "no time": (
        lambda data: split_time(data.set_column(3, "hour", pa.nulls(WIDE)), "hour", 1),
        DataError,
        "row 0, column hour: the time is null",
    ),
}


@pytest.mark.parametrize("split, kind, message", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_divide_is_refused(split, kind, message):
    with pytest.raises(kind, match=message):
        split(hours())


def test_converted_rows_have_no_time_and_say_so(tmp_path):
    convert_files(as_parquet(hours(), tmp_path), tmp_path / "out", schema=SCHEMA)
    with pytest.raises(DataError, match="`convert` leaves it out: split the raw data"):
        split_time(tmp_path / "out", "hour", 3)
    train, valid = split_share(tmp_path / "out", 0.5)
    assert train.num_rows + valid.num_rows == WIDE


NANOSECONDS = 1_414_627_200_000_000_000
# One step before the moment and one at it, as columns may store them.
AROUND = {
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "decimals": pa.decimal128(20, 0),
    "text": pa.string(),
}


@pytest.mark.parametrize("type_", AROUND.values(), ids=AROUND.keys())
def test_a_moment_in_nanoseconds_divides_exactly(type_):
    times = pa.array([NANOSECONDS - 1, NANOSECONDS, NANOSECONDS + 1]).cast(type_)
    rows = pa.table({"label": [0, 1, 0], "I1": [1, 2, 3], "C1": [4, 5, 6], "ns": times})
    for at, later in {NANOSECONDS: 2, NANOSECONDS + 1: 1, float(NANOSECONDS): 2}.items():
        halves = split_time(rows, "ns", at)
        assert [half.num_rows for half in halves] == [3 - later, later]


@pytest.mark.parametrize("at, later", [(1.5, 2), (2.0, 2), (2.5, 1)])
def test_a_moment_may_lie_between_integers(at, later):
    rows = {"label": [0, 1, 0], "I1": [1, 2, 3], "C1": [4, 5, 6], "day": [1, 2, 3]}
    assert [half.num_rows for half in split_time(rows, "day", at)] == [3 - later, later]


@pytest.mark.parametrize("at", [10**400, 2**70, -(10**400), float("inf"), float("nan")])
@pytest.mark.parametrize("day", [[1, 2], [1.5, 2.5]], ids=["integers", "floats"])
def test_a_moment_beyond_all_rows_leaves_one_side_none(at, day):
    rows = {"label": [0, 1], "I1": [1, 2], "C1": [4, 5], "day": day}
    with pytest.raises(DataError, match="no row has day"):
        split_time(rows, "day", at)
