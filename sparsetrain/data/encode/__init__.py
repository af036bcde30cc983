# SPDX-License-Identifier: Apache-2.0
"""Stored values to what a model reads, by what was learnt from the training data.

One file for each kind of column: `dense`, `vocabulary` (with `keys`, `counts`, `id_table`),
`plain_ids`, `bags`. `settings` and `learn` make `rules`; `state`, `encoder_file` and `converted`
are rules as they are stored; `matching` finds their columns in data and `piece` applies them,
giving `rows`; `encoder` is all of that for a user; `reserved` counts unknown ids.
"""
