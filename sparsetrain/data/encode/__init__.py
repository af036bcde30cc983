# SPDX-License-Identifier: Apache-2.0
"""Encoders: all columns of a row, as learned from training data.

`encoder` is the public class. `learn` fits its `rules`, `encoder_state` saves them, `reader` finds
their columns in data and encodes them, `encoded_rows` holds the result, `few_rows` is the short way
of a request, `id_shares` counts unknown ids.
"""
