# SPDX-License-Identifier: Apache-2.0
"""Further kinds of dense columns that a schema can declare, one file each.

`kind` has the interface. The base classes of `sparsetrain.data.schema.schema.Schema` are the table
of kinds.
"""
