# SPDX-License-Identifier: Apache-2.0
"""DLRM's dot interaction on CUDA."""
