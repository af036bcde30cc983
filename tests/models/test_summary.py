# SPDX-License-Identifier: Apache-2.0
"""What `print(model)` says of tables and layers."""

import re

import pytest

import sparsetrain as st

MODELS = {
    "a table for each feature": lambda: st.models.DLRM([100, 2000], dim=8, num_dense=3),
    "tables in int8": lambda: st.models.DLRM([100, 2000], dim=8, table_dtype="int8", num_dense=13),
    "a shared table": lambda: st.models.DIN({"item": 1000, "history": 1000, "user": 50}),
    "layers in layers": lambda: st.models.BERT4Rec({"item": 10, "user": 4, "history": 10}),
    "a parameter of the model's own": lambda: st.models.Pop({"item": 9, "user": 4, "history": 9}),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_lines_of_a_summary_make_up_its_title(name):
    model = MODELS[name]()
    title, _, *lines = str(model).splitlines()
    arrays = model.initialize(0).values()
    count = sum(st.runtime.as_numpy(array).size for array in arrays)
    size = sum(st.runtime.as_numpy(array).nbytes for array in arrays)
    assert title == f"{type(model).__name__}: {count:,} parameters, {size / 1e6:,.2f} MB"
    numbers = [re.search(r"  ([\d,]+) +[\d.]+$", line)[1] for line in lines]
    assert sum(int(number.replace(",", "")) for number in numbers) == count
    assert model._repr_html_().count("<tr>") == len(lines) + 1


def test_a_table_has_its_rows_and_width_and_a_layer_its_kind():
    lines = str(MODELS["a shared table"]()).splitlines()
    assert lines[2].split() == ["item", "table", "1,000", "x", "16", "16,000", "0.06"]
    assert lines[4].split()[:5] == ["attention.layers.0", "Linear", "36", "x", "64,"]
