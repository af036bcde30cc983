# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels for row-sparse tensors: sort ids, sum runs of equal ids, scatter rows."""
