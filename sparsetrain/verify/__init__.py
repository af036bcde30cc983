# SPDX-License-Identifier: Apache-2.0
"""Proofs on this machine of what the package promises, for a model of its own or a saved run.

`subject` is the model and its rows, `checks` the table of checks, `certificate` what is kept.
Each check compares two ways to the same numbers, and can be given a fault that it must find.
"""
