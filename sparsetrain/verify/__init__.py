# SPDX-License-Identifier: Apache-2.0
"""Proofs on this machine of the package's promises, for a small model or a saved run.

`subject` is the model and its rows, `checks` the table of checks, `certificate` the record. Each
check computes the same numbers in two ways, and must find a fault that is injected on request.
"""
