# SPDX-License-Identifier: Apache-2.0
"""One private cache of compiled programs for a test session and the processes that it starts."""

import os
import tempfile

import pytest


def pytest_configure():
    """With SPARSETRAIN_TEST_CUDA=emulated, "auto" is an emulated GPU in all tests."""
    if os.environ.get("SPARSETRAIN_TEST_CUDA") == "emulated":
        from tests.cuda.device import pretend_there_is_one

        pretend_there_is_one()


@pytest.fixture(scope="session", autouse=True)
def private_cache():
    """Neither read nor fill the cache of whoever runs the tests."""
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("SPARSETRAIN_CACHE")
        os.environ["SPARSETRAIN_CACHE"] = folder
        yield
        if before is None:
            del os.environ["SPARSETRAIN_CACHE"]
        else:
            os.environ["SPARSETRAIN_CACHE"] = before
