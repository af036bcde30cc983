# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the benchmarks: models, batches, arms, turns and their timing.

Each library that is measured lives in a process of its own, which may run on another interpreter.
So only `ours`, `roofs` and `profile` import this project; the files of the peers import their own
library, NumPy and the files beside them.
"""
