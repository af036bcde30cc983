# SPDX-License-Identifier: Apache-2.0
"""The examples in the docstrings of the package's optimizers."""

import doctest
import inspect

import pytest

from sparsetrain.optim import OPTIMIZERS


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_constructor_has_an_example_that_runs(name):
    (test,) = doctest.DocTestFinder(recurse=False).find(OPTIMIZERS[name], name)
    assert test.examples and "https://" in inspect.getdoc(OPTIMIZERS[name])
    assert doctest.DocTestRunner().run(test).failed == 0
