# SPDX-License-Identifier: Apache-2.0
"""Backends: each folder is a `sparsetrain.backend.Backend`, and registers itself."""

from sparsetrain.backends import cpu as _cpu  # noqa: F401  (first: the CPU's is the default)
from sparsetrain.backends import cuda as _cuda  # noqa: F401
