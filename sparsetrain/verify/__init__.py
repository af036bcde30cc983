# SPDX-License-Identifier: Apache-2.0
"""Checks of the package's promises on this machine, for a small model or a saved run.

`subject` holds the model and its rows, `checks` the table of checks, `certificate` the results.
Each check computes the same numbers in two ways; on request, a fault is injected, which the check
must detect.
"""
