# SPDX-License-Identifier: Apache-2.0
"""Backends: each subpackage defines one as `BACKEND`; `sparsetrain.backend.BUILT_IN` lists them."""
