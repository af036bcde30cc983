# SPDX-License-Identifier: Apache-2.0
"""Deferred updates of ``mode="exact"``: rows have the bits of a dense optimizer when read.

`rows` tracks which rows are behind and catches them up; `catch_up` has the history of steps and the
kernel that replays them.
"""
