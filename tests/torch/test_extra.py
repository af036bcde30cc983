# SPDX-License-Identifier: Apache-2.0
"""Without PyTorch the names are there, and say what is missing when they are used."""

import sys

import pytest

import sparsetrain as st
from sparsetrain.errors import ConfigError


@pytest.mark.parametrize("name", st.torch.__all__)
def test_a_name_says_that_it_needs_pytorch(name, monkeypatch):
    for module in [m for m in sys.modules if m.startswith("sparsetrain.torch.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=rf"st.torch.{name} needs PyTorch: pip install"):
        getattr(st.torch, name)
