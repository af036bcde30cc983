# SPDX-License-Identifier: Apache-2.0
"""Encoded rows as batches: in which order, from where on, by how many threads.

`order`, `window` (rows mixed at a time), `ranges` (ids checked before reading), `workers`,
`prefetch`; `dataset` puts them together.
"""
