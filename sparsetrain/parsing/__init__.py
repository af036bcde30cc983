# SPDX-License-Identifier: Apache-2.0
"""Kernels that read text: `fields` of lines, `words` of 8 characters; `lookup` of keys."""
