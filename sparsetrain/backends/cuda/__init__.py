# SPDX-License-Identifier: Apache-2.0
"""CUDA: one device of NVIDIA's, and the CPU that launches its kernels."""
