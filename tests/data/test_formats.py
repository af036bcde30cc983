# SPDX-License-Identifier: Apache-2.0
"""File formats: a file of each suffix is read, found in folders and converted as its rows are."""

import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Dataset, Encoder, convert_files
from sparsetrain.data.read.open_source import FORMATS
from tests.data.criteo_tables import assert_batches_equal, joined, make_rows, table

ROWS = table(make_rows())
ENCODER = Encoder.fit(ROWS, min_count=2)


def parquet(path):
    pq.write_table(ROWS, path, row_group_size=13)


def text(delimiter, quoting="none"):
    options = pc.WriteOptions(delimiter=delimiter, quoting_style=quoting, quoting_header=quoting)
    return lambda path: pc.write_csv(ROWS, path, options)


# Suffix -> a function that writes `ROWS` to a path.
WRITERS = {
    ".parquet": parquet,
    ".pq": parquet,
    ".parq": parquet,
    ".tsv": text("\t"),
    ".txt": text("\t"),
    ".csv": text(",", "needed"),
}


def test_every_suffix_has_a_writer():
    suffixes = {suffix for form in FORMATS for suffix in form.suffixes}
    assert suffixes ^ WRITERS.keys() == set()


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_file_is_read_and_converted_as_its_rows_are(suffix, tmp_path):
    path, out = tmp_path / "logs" / f"a{suffix}", tmp_path / "converted"
    path.parent.mkdir()
    WRITERS[suffix](path)
    convert_files(path, out, encoder=ENCODER)
    for given in (path, path.parent, out):
        found = joined(Dataset(given, ENCODER).batches(7))
        assert_batches_equal(found, ENCODER.encode(ROWS))
