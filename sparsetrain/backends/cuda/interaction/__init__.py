# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels of DLRM's dot interaction."""
