# SPDX-License-Identifier: Apache-2.0
"""Arrays of a program: apart while both are in use, and in no more memory than they need."""

from itertools import combinations

import numpy as np
import pytest

from sparsetrain import runtime
from sparsetrain.errors import ResourceError
from sparsetrain.runtime import workspace
from sparsetrain.runtime.workspace import MAX_LAYOUTS, PAGE, BufferLifetime, Workspace, layout


def _need(first, last, shape, within=None, dtype="float32"):
    return BufferLifetime(first, last, within, dtype, shape)


def _growing(given):
    """Two arrays that are in use one after the other, and one beside both."""
    (rows,) = given[0].shape
    return [_need(0, 1, (rows,)), _need(2, 3, (2, rows)), _need(0, 3, (rows, 3), dtype="int64")]


def _arrays(space, rows):
    return space.arrays(rows, [runtime.zeros((rows,), "float32")])


def test_arrays_in_use_at_the_same_time_do_not_meet():
    rng = np.random.default_rng(0)
    needs = [
        _need(int(begin), int(begin + rng.integers(0, 12)), (int(rng.integers(0, 5)) * 999,))
        for begin in rng.integers(0, 40, 60)
    ]
    needs.append(needs[7]._replace(first=50, last=90, within=7))  # the same memory, used later
    spans, whole = layout(needs, [need.size for need in needs])
    in_use = [*needs[:7], needs[7]._replace(last=90), *needs[8:-1]]
    for (a, mine), (b, other) in combinations(zip(in_use, spans[:-1], strict=True), 2):
        if a.first <= b.last and b.first <= a.last:
            assert mine[1] <= other[0] or other[1] <= mine[0]
    for need, (begin, end) in zip(in_use, spans[:-1], strict=True):
        assert begin % PAGE == 0 and end - begin >= need.size
    assert whole == max(end for _, end in spans) < sum(end - begin for begin, end in spans) / 2


def test_an_array_comes_where_the_last_one_of_its_size_was():
    needs = [_need(0, 1, (7,)), _need(0, 2, (9,)), _need(0, 2, (5000,)), _need(3, 4, (8,))]
    spans, _ = layout(needs, [need.size for need in needs])
    assert spans[3] == spans[1]


def test_arrays_have_the_shapes_and_dtypes_that_are_needed():
    arrays = _arrays(Workspace(_growing), 5)
    found = [(tuple(array.shape), str(array.dtype)) for array in arrays]
    assert found == [((5,), "float32"), ((2, 5), "float32"), ((5, 3), "int64")]
    assert all(array.data_ptr() % 64 == 0 for array in arrays)


def test_an_array_may_show_the_memory_of_another_one():
    needs = [_need(0, 0, (2, 3)), _need(1, 1, (6,), within=0), _need(1, 1, (6,))]
    whole, shown, other = Workspace(lambda _: needs).arrays((), [])
    runtime.as_numpy(whole, writable=True)[...] = [[0, 1, 2], [3, 4, 5]]
    runtime.as_numpy(other, writable=True)[...] = -1
    assert runtime.as_numpy(shown).tolist() == [0, 1, 2, 3, 4, 5]


def test_sizes_that_were_seen_make_nothing_and_only_larger_ones_make_a_block(monkeypatch):
    made = []
    monkeypatch.setattr(
        workspace,
        "empty",
        lambda shape, *rest: made.append(shape[0]) or runtime.empty(shape, *rest),
    )
    space = Workspace(_growing)
    large = _arrays(space, 100)
    small = _arrays(space, 7)
    assert _arrays(space, 100) is large and _arrays(space, 7) is small
    assert len(made) == 1
    assert _arrays(space, 2000) is not large
    assert len(made) == 2 and made[1] > made[0]


def test_of_ever_new_sizes_few_are_kept():
    space = Workspace(_growing)
    for rows in range(4 * MAX_LAYOUTS, MAX_LAYOUTS, -1):
        _arrays(space, rows)
    assert len(space._views) == MAX_LAYOUTS


def test_after_too_large_a_size_others_work(monkeypatch):
    space = Workspace(_growing)
    _arrays(space, 3)
    with (
        monkeypatch.context() as patched,
        pytest.raises(ResourceError, match="the workspace of a program"),
    ):
        patched.setattr(workspace, "empty", _refuse)
        _arrays(space, 1000)
    assert tuple(_arrays(space, 3)[0].shape) == (3,)


def _refuse(shape, dtype, what):
    raise ResourceError(f"no memory for {what}: shape {shape} {dtype}")
