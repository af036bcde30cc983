# SPDX-License-Identifier: Apache-2.0
"""Encoders: all columns of a row, as learned from training data.

`encoder` is the public class, `rules` its columns. `learn` fits them, with boundaries of derived
columns, `encoder_state` saves them, `reader` finds them in data and encodes rows, `few_rows` is a
fast path for requests.
"""
