# SPDX-License-Identifier: Apache-2.0
"""How a row-sparse gradient reaches its table: touched rows by a plan, or every row.

`parting` sends each entry its way, `dense` (with `dense_kernels`) is the way over every row.
"""
