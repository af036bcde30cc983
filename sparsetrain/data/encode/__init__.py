# SPDX-License-Identifier: Apache-2.0
"""Encoders: all columns of a row, as learned from training data.

`encoder` has the public class, `rules` its columns and settings. `learn` fits the columns, with the
boundaries of derived ones; `encoder_state` reads saved ones. `reader` finds the columns in data and
encodes rows; `few_rows` is a fast path for requests.
"""
