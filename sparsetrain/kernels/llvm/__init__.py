# SPDX-License-Identifier: Apache-2.0
"""Fragments of LLVM IR that kernels call."""
