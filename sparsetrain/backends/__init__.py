# SPDX-License-Identifier: Apache-2.0
"""Backends: each folder defines one, `BACKEND`; `sparsetrain.backend.BUILT_IN` lists them."""
