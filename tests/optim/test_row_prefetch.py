# SPDX-License-Identifier: Apache-2.0
"""How rows are asked for ahead: by processor, with the same bits."""

import numpy as np
import pytest

from sparsetrain import runtime
from sparsetrain.optim import row_prefetch
from sparsetrain.optim.kernels import row_update_kernel
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.host import host_target
from sparsetrain.sparse_tensor.coalesce import make_plan
from tests.helpers import assert_same_bits
from tests.optim.formulas import OPTIMIZERS

ROWS, ENTRIES = 997, 3000  # more than are asked for at once, with duplicates


@pytest.mark.parametrize("width", [4, 16, 80])
@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise_adagrad"])
def test_every_way_to_ask_gives_the_same_bits(name, width, monkeypatch):
    first, *others = (
        _updated(name, width, prefetch, monkeypatch) for prefetch in row_prefetch.PREFETCH.values()
    )
    assert np.any(first[0] != 0)
    for other in others:
        for expected, found in zip(first, other, strict=True):
            assert_same_bits(found, expected)


def _updated(name: str, width: int, prefetch, monkeypatch) -> list[np.ndarray]:
    """Weight and slots after one update by a kernel that asks in this way."""
    monkeypatch.setattr(row_prefetch, "PREFETCH", {"": prefetch})
    spec = OPTIMIZERS[name]._rule().spec
    kernel = compile_kernel(
        row_update_kernel(spec, width, "float32", "int32", pooled=False, stamped=False),
        host_target(),
    )
    rng = np.random.default_rng(0)
    plan = make_plan(runtime.as_tensor(rng.integers(0, ROWS, ENTRIES), "int32"), ROWS)
    values = runtime.as_tensor(rng.standard_normal((ENTRIES, width), "f4"))
    shapes = {"element": (ROWS, width), "row": (ROWS,)}
    arrays = [
        runtime.zeros((ROWS, width), "float32"),
        *(runtime.zeros(shapes[slot.per], "float32") for slot in spec.formula.slots),
    ]
    rows, order, offsets = plan.arrays
    numbers = [0.1] * len(spec.scalars)
    kernel(rows, order, offsets, order, values, *arrays, *numbers, 0, plan.num_unique)
    return [runtime.as_numpy(array).copy() for array in arrays]
