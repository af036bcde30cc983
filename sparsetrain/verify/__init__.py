# SPDX-License-Identifier: Apache-2.0
"""Checks of the package's promises on this machine, for a small model or a saved run.

`subject` has the model and its rows, `checks` the table of checks, `certificate` the record. Each
check computes the same numbers in two ways, and must detect a fault that is injected on request.
"""
