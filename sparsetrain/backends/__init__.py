# SPDX-License-Identifier: Apache-2.0
"""Backends: each folder has one, `BACKEND`, which `sparsetrain.backend.BUILT_IN` names."""
