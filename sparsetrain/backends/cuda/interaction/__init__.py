# SPDX-License-Identifier: Apache-2.0
"""Dot interaction of DLRM on CUDA."""
