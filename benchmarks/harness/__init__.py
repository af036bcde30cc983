# SPDX-License-Identifier: Apache-2.0
"""Parts of the benchmarks: what is trained, on what, by whom, and how turns are taken and timed.

Each library that is measured lives in a process of its own, which may run on another interpreter.
So only `ours`, `roofs` and `profile` import this project; the files of the peers import their own
library, NumPy and the files beside them.
"""
