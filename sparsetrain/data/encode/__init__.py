# SPDX-License-Identifier: Apache-2.0
"""Encoders: all columns of a row, as learned from training data.

`encoder` is the public class, `rules` its columns. `learn` fits them, `learn_derived` the parts of
a schema that are learnt, `encoder_state` saves them, `reader` finds them in data and encodes rows,
`encoded_rows` holds the result, `few_rows` is the short way of a request, `id_shares` counts
unknown ids.
"""
