# SPDX-License-Identifier: Apache-2.0
"""Batches from a source: order, shuffling and background threads.

`dataset` yields the batches of an epoch, `shuffle` orders and mixes rows, `threads` runs iterators
and functions in the background.
"""
