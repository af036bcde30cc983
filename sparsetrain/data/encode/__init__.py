# SPDX-License-Identifier: Apache-2.0
"""Encoders: category values to table rows, dense values to float32, as learned from training data.

`value_counts` and `vocabulary` map category values to ids (with `hash_table`), `dense` transforms
numbers, `bags` handles list columns. `learn` fits the `rules` of all columns, `encoder_state` saves
them, `column_matching` finds their columns in other data, `encoded_rows` holds the result,
`reserved` counts unknown ids. `encoder` is the public class.
"""
