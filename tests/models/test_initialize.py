# SPDX-License-Identifier: Apache-2.0
"""Initial weights: the laws of the reference, and independence of everything but seed and name."""

import numpy as np
import pytest

from sparsetrain.models import DLRM
from sparsetrain.models.initialize import BLOCK, drawn_rows, fill_, normal, uniform
from sparsetrain.runtime import as_numpy
from tests.helpers import assert_same_bits

STORAGE = "embeddings.width8.weight"


def tables(model: DLRM, seed: int = 0) -> dict[str, np.ndarray]:
    storage = as_numpy(model.initialize(seed)[STORAGE])
    return {name: storage[rows] for name, rows in model.tables()[STORAGE].items()}


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    first, again, other = (DLRM(rows=[50, 7], dim=8).initialize(seed) for seed in (3, 3, 4))
    for name, tensor in first.items():
        assert_same_bits(again[name], as_numpy(tensor))
        assert (as_numpy(other[name]) != as_numpy(tensor)).any()


def test_a_table_does_not_depend_on_the_other_tables():
    alone = tables(DLRM(rows=[50], dim=8, names=["b"]))
    among = tables(DLRM(rows=[9, 50, 3], dim=8, names=["a", "b", "c"]))
    assert_same_bits(alone["b"], among["b"])


def test_tables_of_one_size_differ():
    made = tables(DLRM(rows=[50, 50], dim=8))
    assert (made["C1"] != made["C2"]).all()


def test_the_mlps_do_not_depend_on_the_tables():
    small, large = (DLRM(rows=rows, dim=8).initialize(0) for rows in ([5], [500]))
    for name, tensor in small.items():
        if name != STORAGE:
            assert_same_bits(large[name], as_numpy(tensor))


@pytest.mark.parametrize("rows", [4, 100, 40_000])
def test_a_table_is_uniform_within_one_over_the_root_of_its_rows(rows):
    table = tables(DLRM(rows=[rows], dim=8))["C1"]
    bound = np.sqrt(1 / rows)
    assert table.dtype == np.float32
    assert table.min() >= -bound and table.max() < bound
    if rows > 1000:
        deciles = np.histogram(table, 10, (-bound, bound))[0] / table.size
        np.testing.assert_allclose(deciles, 0.1, atol=0.005)


def test_linear_layers_are_normal_with_the_deviations_of_the_reference():
    params = DLRM(rows=[5], dim=8, bottom=(400,), top=(300,), num_dense=200).initialize(0)
    weight = as_numpy(params["bottom.layers.0.weight"])
    bias = as_numpy(params["bottom.layers.0.bias"])
    assert weight.shape == (400, 200) and bias.shape == (400,)
    assert weight.std() == pytest.approx(np.sqrt(2 / 600), rel=0.02)
    assert bias.std() == pytest.approx(np.sqrt(1 / 400), rel=0.15)
    assert abs(weight.mean()) < 0.001


def test_cross_layers_begin_as_torchrecs_do_whatever_else_there_is():
    cross = {"interaction": "cross", "cross_rank": 300, "cross_layers": 1}
    one, other = (
        DLRM(rows=[5] * 19, dim=20, top=top, num_dense=n, **cross).initialize(0)
        for top, n in (((8,), 3), ((), 0))
    )
    for part in ("v", "w"):
        weight = as_numpy(one[f"interaction.layers.0.{part}.weight"])
        assert weight.std() == pytest.approx(np.sqrt(2 / 700), rel=0.02)
        assert_same_bits(as_numpy(other[f"interaction.layers.0.{part}.weight"]), weight)
    assert not as_numpy(one["interaction.layers.0.w.bias"]).any()
    assert as_numpy(one["top.layers.0.bias"]).all()


def test_a_large_table_is_filled_block_by_block_with_different_numbers():
    out = np.empty(2 * BLOCK + 5, np.float32)
    fill_(out, uniform(1.0), 0, "t")
    parts = [out[:5], out[BLOCK : BLOCK + 5], out[2 * BLOCK :]]
    assert len({part.tobytes() for part in parts}) == 3
    begin = np.empty(BLOCK, np.float32)
    fill_(begin, uniform(1.0), 0, "t")
    assert_same_bits(begin, out[:BLOCK])


@pytest.mark.parametrize("draw", [uniform(0.5), normal(0.5)])
def test_float64_parameters_are_filled_too(draw):
    single, double = np.empty((3, 4), "f4"), np.empty((3, 4))
    fill_(single, draw, 7, "w")
    fill_(double, draw, 7, "w")
    np.testing.assert_allclose(double, single, rtol=1e-6)


def test_rows_are_drawn_as_the_whole_is():
    whole = np.empty((BLOCK // 5, 7), np.float32)  # no row ends where a block does
    fill_(whole, normal(0.5), 7, "w")
    for first, rows in drawn_rows(whole.shape, normal(0.5), 7, "w"):
        assert_same_bits(rows, whole[first : first + len(rows)])
    assert first + len(rows) == len(whole)
