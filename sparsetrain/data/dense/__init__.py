# SPDX-License-Identifier: Apache-2.0
"""Dense columns of a kind of their own, which a schema names: each in one file.

`kind` says what a kind answers. The bases of `sparsetrain.data.schema.schema.Schema` are the table.
"""
