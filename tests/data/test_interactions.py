# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsetrain.data import Interactions
from sparsetrain.errors import ConfigError, DataError

# User 7 chose 10 to 13 in the order of time, user 8 two items, user 9 one.
ROWS = {
    "user": [7, 8, 7, 9, 7, 8, 7],
    "item": [12, 20, 10, 30, 11, 21, 13],
    "rating": [3.0, 1.0, 1.0, 5.0, 2.0, 2.0, 4.0],
    "time": [103, 50, 101, 200, 102, 60, 104],
}


def lines(delimiter, names=None, columns=("user", "item", "rating", "time")):
    rows = zip(*(ROWS[name] for name in columns), strict=True)
    head = [delimiter.join(names)] if names else []
    return "\n".join(head + [delimiter.join(map(str, row)) for row in rows]) + "\n"


def plain(table):
    """Rows of a table with integers, as text files have bytes."""
    return [
        {name: [*map(int, v)] if isinstance(v, list) else int(v) for name, v in row.items()}
        for row in table.to_pylist()
    ]


ATOMIC = ("user_id:token", "item_id:token", "rating:float", "timestamp:float")
FILES = {
    "rows.inter": lines("\t", ATOMIC),
    "rows.csv": lines(",", ("userId", "itemId", "rating", "timestamp")),
    "rows.tsv": lines("\t", ("user", "item", "rating", "time")),
    "spaces.txt": lines(" "),
    "times.txt": lines(" ", columns=("user", "item", "time")),
}


@pytest.mark.parametrize("name", [*FILES, "rows.parquet", "frame"])
def test_every_format_gives_the_same_split(name, tmp_path):
    path = tmp_path / name
    if name == "frame":
        data = pd.DataFrame(ROWS)
    elif name == "rows.parquet":
        data = path
        pq.write_table(pa.table(ROWS), path)
    else:
        data = path
        path.write_text(FILES[name])
    log = Interactions.read(data)
    split = log.leave_one_out()
    assert plain(split.train) == [
        {"user": 7, "history": [10], "item": [11]},
        {"user": 8, "history": [20], "item": [21]},
    ]
    assert plain(split.valid) == [{"user": 7, "history": [10, 11], "item": [12]}]
    assert plain(split.test) == [{"user": 7, "history": [10, 11, 12], "item": [13]}]
    assert (log.rating is None) == (name == "times.txt")
    assert log.table().num_rows == len(log) == 7


def test_histories_have_ages_on_demand():
    log = Interactions.read(ROWS)
    split = log.leave_one_out(ages=True)
    assert split.test["history_age"].to_pylist() == [[2, 1, 0]]
    event = log.split_time(104, each="event", max_length=2, ages=True)
    assert event.train["history_age"].to_pylist() == [[], [0], [1, 0], [], [0]]
    batch = split.encoder().encode(split.test, require_label=False)
    assert batch.ids[1].weights.tolist() == [2, 1, 0]
    with pytest.raises(ConfigError, match="ages need times: name the time column"):
        Interactions.read({n: ROWS[n] for n in ("user", "item")}).leave_one_out(ages=True)


def test_an_event_is_a_row_with_the_history_before_it():
    split = Interactions.read(ROWS).split_time(103, 104, each="event", max_length=1)
    assert plain(split.train) == [
        {"user": 7, "history": [], "item": [10]},
        {"user": 7, "history": [10], "item": [11]},
        {"user": 8, "history": [], "item": [20]},
        {"user": 8, "history": [20], "item": [21]},
    ]
    assert plain(split.valid) == [{"user": 7, "history": [10, 11], "item": [12]}]
    assert plain(split.test) == [
        {"user": 7, "history": [10, 11, 12], "item": [13]},
        {"user": 9, "history": [], "item": [30]},
    ]


def test_a_pair_is_a_row_with_all_items_of_its_user():
    split = Interactions.read(ROWS).split_time(103, each="pair")
    assert plain(split.train) == [
        {"user": 7, "history": [10, 11], "item": [10]},
        {"user": 7, "history": [10, 11], "item": [11]},
        {"user": 8, "history": [20, 21], "item": [20]},
        {"user": 8, "history": [20, 21], "item": [21]},
    ]


def test_a_random_split_holds_out_shares_of_each_user_by_its_seed():
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(40), rng.integers(10, 50, 40))
    log = Interactions.read({"user": user, "item": np.arange(len(user))})
    first, again, other = (log.split_random(0.1, 0.2, seed=seed) for seed in (1, 1, 2))
    assert first.test == again.test != other.test
    counts = np.bincount(user)
    for table, share in ((first.valid, 0.1), (first.test, 0.2)):
        sizes = table["item"].combine_chunks().value_lengths().to_numpy()
        assert (abs(sizes - share * counts) <= 1).all()
    parts = [
        {*table["item"].combine_chunks().flatten().to_pylist()}
        for table in (first.train, first.valid, first.test)
    ]
    assert set.union(*parts) == {*range(len(user))} and sum(map(len, parts)) == len(user)
    seen = {*first.test["history"].combine_chunks().flatten().to_pylist()}
    assert seen == parts[0] | parts[1]


def test_an_encoder_knows_every_user_and_item_once():
    split = Interactions.read(ROWS).leave_one_out()
    encoder = split.encoder()
    assert encoder.columns == ("user", "history", "item")
    assert {*encoder.values("user")} == {None, 7, 8, 9}
    assert {*encoder.values("item")} == {None, 10, 11, 12, 13, 20, 21, 30}
    history, item = encoder.encode(split.test, require_label=False).ids[1:]
    assert [encoder.values("item")[i] for i in (*history.ids, *item.ids)] == [10, 11, 12, 13]


BAD = {
    "an item": ({"user": [1], "thing": [1]}, "column item: the item column is missing"),
    "null": ({"user": [1, None], "item": [1, 2]}, "row 1, column user: the value is null"),
    "list": ({"user": [1], "item": [[1]]}, "column item: holds lists"),
    "time": ({"user": [1], "item": [1], "time": ["soon"]}, "column time: 'soon' is not a number"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_are_refused_by_place(case):
    data, message = BAD[case]
    with pytest.raises(DataError, match=message):
        Interactions.read(data)


def test_splits_that_cannot_be_are_refused(tmp_path):
    log = Interactions.read({"user": [1, 1, 1], "item": [1, 2, 3]})
    with pytest.raises(ConfigError, match="needs times"):
        log.split_time(1)
    with pytest.raises(ConfigError, match="at least 0 and below 1"):
        log.split_random(1)
    with pytest.raises(ConfigError, match="'event' or 'user' or 'pair'"):
        log.leave_one_out("row")
    (tmp_path / "wide.txt").write_text("1,2,3,4,5\n")
    with pytest.raises(DataError, match="5 fields without names"):
        Interactions.read(tmp_path / "wide.txt")
