# SPDX-License-Identifier: Apache-2.0
"""Derived columns, computed from the row's other columns; one file for each kind.

`kind` defines the interface. The kinds are the base classes of
`sparsetrain.data.schema.derived.Derived`.
"""
