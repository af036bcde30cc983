# SPDX-License-Identifier: Apache-2.0
"""Operating-system services without TVM: locks, files, memory, threads."""
