# SPDX-License-Identifier: Apache-2.0
"""Rows that a batch does not name get the bits of a dense optimizer, later: ``mode="exact"``.

`rows` says which are caught up and when, `history` keeps the numbers of the steps that they missed,
`catch_up` is the kernel that replays those.
"""
