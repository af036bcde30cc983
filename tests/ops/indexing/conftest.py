# SPDX-License-Identifier: Apache-2.0
"""Reads and writes by ids hold on both targets."""

from tests.cuda.conftest import target as target
