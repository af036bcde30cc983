# SPDX-License-Identifier: Apache-2.0
"""Criteo-shaped rows of any number, from a seed, with labels drawn from known probabilities.

A chunk depends only on the seed, its number and its size, so chunks can be made in any order and by
any process. A seed fixes the ids and their weights, so take training and test sets from one
generator, as two ranges of chunks. Numbers can differ in the last digit between processors, since
NumPy's logarithm and power do.

A file is parquet, with the best possible score in its metadata, or text in Criteo's format: tabs,
no header, empty fields for missing values. Parquet's page checksums are
on: without them a flipped bit would go unnoticed.
"""

import glob
import json
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from sparsetrain.data.synthetic.effects import CeilingMeter, Effects, Truth, calibrate, sigmoid
from sparsetrain.data.synthetic.sample import (
    CATEGORIES,
    CHUNK,
    INTEGERS,
    PILOT,
    WORLD,
    Sample,
    Sampler,
    Stream,
)
from sparsetrain.errors import ConfigError, DataError, first_line
from sparsetrain.system.argument_checks import require_int
from sparsetrain.system.file_locks import atomic_write, remove_temporaries

SCHEMA = pa.schema(
    [("label", pa.int32())]
    + [(name, pa.int32()) for name in INTEGERS]
    + [(name, pa.string()) for name in CATEGORIES]
)
_KEY = b"sparsetrain.synthetic"
_parquet = partial(pq.ParquetWriter, schema=SCHEMA, compression="zstd", write_page_checksum=True)
_LIKE_CRITEO = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
_text = partial(csv.CSVWriter, schema=SCHEMA, write_options=_LIKE_CRITEO)

_PILOT_ROWS = 1 << 17
_MAX_ROWS = 1 << 24  # a chunk's text offsets are int32, and a chunk is held in memory


class SyntheticCriteo:
    """Generates rows with Criteo's columns, missing values and frequencies, and a known ceiling.

    Parameters
    ----------
    seed : int
        Not negative.
    click_rate : float
        Mean probability of a click, between 0.01 and 0.99.
    bayes_auc : float
        AUC of the true probabilities, between 0.55 and 0.99; no model can beat it.
    max_cardinality : int, optional
        At most this many distinct ids per column, 2 or more. By default as many as Criteo has, up
        to ten million.

    Raises
    ------
    ConfigError
        If an argument is out of range.

    Notes
    -----
    The click rate and the ceiling are met on pilot rows; elsewhere they vary by about 0.002.
    `chunk_with_truth` and `write` return the exact truth of their rows.

    Examples
    --------
    >>> rows = SyntheticCriteo(seed=7)
    >>> rows.chunk(0, rows=1000).num_rows
    1000
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        click_rate: float = 0.256,
        bayes_auc: float = 0.80,
        max_cardinality: int | None = None,
    ) -> None:
        self.seed = require_int("seed", seed, 0)
        self.click_rate = _between("click_rate", click_rate, 0.01, 0.99)
        self.bayes_auc = _between("bayes_auc", bayes_auc, 0.55, 0.99)
        self.max_cardinality = max_cardinality
        if max_cardinality is not None:
            self.max_cardinality = require_int("max_cardinality", max_cardinality, 2)
        self._sampler = Sampler(self.max_cardinality)
        world = Stream(self.seed, WORLD)
        self._keys = world.integers(len(CATEGORIES)) >> 32
        self._effects = Effects(self._sampler, world)
        pilot = self._sampler.draw(Stream(self.seed, PILOT), _PILOT_ROWS)
        self._calibration = calibrate(self._effects.parts(pilot), self.click_rate, self.bayes_auc)

    def chunk(self, k: int, rows: int = 65536) -> pa.Table:
        """Return chunk `k`: label and I1 to I13 int32, C1 to C26 text of 8 hex digits.

        Parameters
        ----------
        k : int
            Number of the chunk, from 0.
        rows : int
            Rows in it; a different size is different data.
        """
        return self.chunk_with_truth(k, rows)[0]

    def chunk_with_truth(self, k: int, rows: int = 65536) -> tuple[pa.Table, np.ndarray]:
        """Return chunk `k` and the true probability of a click of each row, float64 (rows,)."""
        table, logits = self._make(require_int("k", k, 0), require_int("rows", rows, 1, _MAX_ROWS))
        return table, sigmoid(logits)

    def write(
        self,
        path: str | PathLike[str],
        rows: int,
        *,
        first_chunk: int = 0,
        chunk_rows: int = 65536,
    ) -> Truth:
        """Write the first `rows` rows of chunks `first_chunk`, `first_chunk + 1`, ... to a file.

        The file appears complete or not at all, and replaces an existing one. The metadata of a
        parquet file hold the ceiling, which `read_truth` reads. Memory does not depend on `rows`.

        Parameters
        ----------
        path : path
            File to write, in an existing folder: text in Criteo's format if it ends in .tsv, else
            parquet.
        rows : int
            Number of rows; with a smaller number, the file has the first of the same rows.
        first_chunk : int
            The first chunk. Files without a common chunk have no common row.
        chunk_rows : int
            Rows per chunk, and per row group of the file.

        Returns
        -------
        Truth
            Scores of a perfect model on these rows.

        Raises
        ------
        DataError
            If the file cannot be written.
        ResourceError
            If the disk is full.
        """
        rows, chunk_rows = (
            require_int("rows", rows, 1),
            require_int("chunk_rows", chunk_rows, 1, _MAX_ROWS),
        )
        first = require_int("first_chunk", first_chunk, 0)
        path = Path(path)
        if path.is_dir() or not path.parent.is_dir():
            fix = "it is a folder" if path.is_dir() else f"create the folder {path.parent} first"
            raise DataError(f"{path}: cannot be written: {fix}")
        remove_temporaries(path.parent, glob.escape(path.name))
        is_text = path.suffix.lower() == ".tsv"
        meter = CeilingMeter()
        with atomic_write(path) as file, (_text if is_text else _parquet)(file) as writer:
            for number, start in enumerate(range(0, rows, chunk_rows), first):
                table, logits = self._make(number, chunk_rows)
                writer.write_table(table[: rows - start])
                meter.update(logits[: rows - start])
            truth = meter.result()
            if not is_text:
                made_by = {
                    "seed": self.seed,
                    "click_rate": self.click_rate,
                    "bayes_auc": self.bayes_auc,
                    "max_cardinality": self.max_cardinality,
                    "first_chunk": first,
                    "chunk_rows": chunk_rows,
                }
                note = json.dumps({**made_by, "truth": truth._asdict()})
                writer.add_key_value_metadata({_KEY: note})
        return truth

    def _make(self, k: int, rows: int) -> tuple[pa.Table, np.ndarray]:
        """Return chunk `k` and its true logits, float64 (rows,)."""
        stream = Stream(self.seed, CHUNK, k, rows)
        sample = self._sampler.draw(stream, rows)
        logits = self._calibration.logits(self._effects.parts(sample))
        labels = (stream.uniform(rows) < sigmoid(logits)).astype(np.int32)
        return self._table(labels, sample), logits

    def _table(self, labels: np.ndarray, sample: Sample) -> pa.Table:
        columns = {"label": pa.array(labels)}
        integers = zip(INTEGERS, sample.integers, sample.absent, strict=True)
        columns |= {name: pa.array(values, mask=gone) for name, values, gone in integers}
        categories = zip(CATEGORIES, sample.ranks, self._keys, strict=True)
        columns |= {name: hex_column(ranks, key) for name, ranks, key in categories}
        return pa.table(columns, schema=SCHEMA)


def read_truth(path: str | PathLike[str]) -> Truth | None:
    """Return the `Truth` of a file that `SyntheticCriteo.write` wrote; None for other parquet.

    Raises
    ------
    DataError
        If `path` cannot be read as parquet.
    """
    try:
        metadata = pq.read_metadata(path).metadata or {}
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path} cannot be read as parquet: {first_line(error)}") from None
    if _KEY not in metadata:
        return None
    try:
        return Truth(**json.loads(metadata[_KEY])["truth"])
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} has a damaged note of its ceiling: write it again") from None


def _between(name: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise ConfigError(f"{name} must be between {low} and {high}, not {value}")
    return float(value)


_DIGITS = 8
# The four hex digits of every 16-bit number, as one 4-byte item each.
_QUADS = np.array([f"{i:04x}" for i in range(1 << 16)], "S4").view(np.uint32)


def scramble(ranks: np.ndarray, key: int) -> np.ndarray:
    """Map ranks to distinct 32-bit values: uint32 of the same shape.

    The bijection has a key per column, so texts look like Criteo's hashes and do not reveal the
    frequency. It is the finalizer of MurmurHash3; each of its steps is invertible.
    """
    v = ranks.astype(np.uint32) ^ np.uint32(key)
    v ^= v >> 16
    v *= np.uint32(0x85EBCA6B)
    v ^= v >> 13
    v *= np.uint32(0xC2B2AE35)
    v ^= v >> 16
    return v


def hex_column(ranks: np.ndarray, key: int) -> pa.Array:
    """Return `ranks` (n,) as eight hex digits each, null where the rank is 0; 8 ns a value."""
    present = ranks > 0
    values = scramble(ranks[present], key)
    text = np.empty((len(values), 2), np.uint32)
    text[:, 0] = _QUADS.take(values >> 16)
    text[:, 1] = _QUADS.take(values & 0xFFFF)
    offsets = np.zeros(len(ranks) + 1, np.int32)
    np.cumsum(present, out=offsets[1:])
    offsets *= _DIGITS
    valid = np.packbits(present, bitorder="little")
    buffers = [pa.py_buffer(b) for b in (valid, offsets, text)]
    return pa.Array.from_buffers(pa.string(), len(ranks), buffers)
