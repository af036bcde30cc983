# SPDX-License-Identifier: Apache-2.0
"""TVM is imported without PyTorch, which can be imported later."""

import os
import subprocess
import sys

import pytest

import sparsetrain as st
from tests.helpers import slow_except

USE = """
import sys
import sparsetrain as st
for name in {names}:
    getattr(st, name)
assert "tvm" in sys.modules
print("torch" in sys.modules)
import torch
print(torch.IS_HERE)
"""


@pytest.mark.parametrize("names", slow_except([st.__all__], [["load"], st.__all__]))
def test_pytorch_is_imported_by_who_asks_for_it(tmp_path, names):
    (tmp_path / "torch.py").write_text("IS_HERE = True")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", USE.format(names=names)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout.split() == ["False", "True"], done.stderr
