# SPDX-License-Identifier: Apache-2.0
"""Warnings of data that can be read and hardly mean what they say, and messages of foreign data."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from sparsetrain.data import Dataset, Encoder, Linear, Schema, open_source
from sparsetrain.errors import DataError, DataWarning

SCHEMA = Schema("y", ("x",), ("c",))


def rows(count=400, low=0.0, value=lambda n: n % 7):
    numbers = np.random.default_rng(0).normal(low, 1, count).tolist()
    return {"y": [0, 1] * (count // 2), "x": numbers, "c": [value(n) for n in range(count)]}


def read(encoder, data):
    dataset = Dataset(data, encoder)
    for _ in dataset.batches(100, prefetch=0):
        pass
    dataset._warn_of_unknown()


def test_numbers_that_the_logarithm_makes_equal_are_warned_of():
    with pytest.warns(DataWarning, match=r"table: column x: 1\d% of the numbers are below -2, and"):
        Encoder.fit(rows(low=-1.0), schema=SCHEMA)
    linear = Schema("y", ("x",), ("c",), linear={"x": Linear(-1, 1)})
    Encoder.fit(rows(low=-1.0), schema=linear)  # warnings are errors
    Encoder.fit(rows(low=5.0), schema=SCHEMA)


def test_a_column_of_which_nothing_is_known_is_warned_of():
    encoder = Encoder.fit(rows(low=5.0), schema=SCHEMA)
    with pytest.warns(DataWarning, match="column c: all of its 400 values .* such as 0, 1: is it"):
        read(encoder, rows(low=5.0, value=lambda n: f"v{n % 7}"))
    for fine in (lambda n: str(n % 7), lambda n: "v" if n else 1, lambda n: None):
        read(encoder, rows(low=5.0, value=lambda n, fine=fine: fine(n) and str(fine(n))))
    with pytest.warns(DataWarning):
        read(encoder, rows(100, 5.0, lambda n: -1))
    read(encoder, rows(98, 5.0, lambda n: -1))
    rare = Encoder.fit(rows(low=5.0, value=int), schema=SCHEMA)
    read(rare, rows(low=5.0, value=lambda n: n + 1000))


class Splits(dict):
    """Data sets by name."""

    __module__ = "datasets.dataset_dict"


class Column(list):
    """A column of a data set."""

    __module__ = "datasets.arrow_dataset"


FOREIGN = {
    "an array": (np.zeros((2, 2)), "an ndarray|a ndarray; its columns have no names: pandas"),
    "a SciPy matrix": (scipy.sparse.eye(3).tocsr(), r"each row is a bag: Batch\(dense, \[Ragged"),
    "a column": (Column([1]), "cannot read rows from a Column; it is a single column"),
    "a Series": (
        pd.Series([1]),
        "Series: cannot be read as a table .*; it is a single column: give",
    ),
    "several splits": (Splits(train=[]), r"give one, such as data\['train'\]"),
}


@pytest.mark.parametrize("data, message", FOREIGN.values(), ids=FOREIGN.keys())
def test_data_of_other_packages_are_told_what_to_become(data, message):
    with pytest.raises(DataError, match=message):
        open_source(data)


@pytest.mark.parametrize("item, message", [({"y": 1}, "given as a list"), ([1], r"\(Batch\(\*arr")])
def test_a_generator_of_rows_is_told_what_to_become(item, message):
    with pytest.raises(DataError, match=message):
        next(open_source(one for one in [item]).batches())
