# SPDX-License-Identifier: Apache-2.0
"""Kernels that read text: `fields` of lines, as the numbers of their `words`; `lookup` of keys."""
