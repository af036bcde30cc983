# SPDX-License-Identifier: Apache-2.0
"""Further kinds of dense columns that a schema can declare, one file each.

`kind` defines the interface. The kinds are the base classes of
`sparsetrain.data.schema.schema.Schema`.
"""
