# SPDX-License-Identifier: Apache-2.0
"""Deferred updates of ``mode="exact"``: rows have the bits of a dense optimizer when read.

`rows` tracks which rows are behind and catches them up, `history` records the numbers of past
steps, `catch_up` is the kernel that replays them.
"""
