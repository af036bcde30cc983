# SPDX-License-Identifier: Apache-2.0
"""Kernels that read rows of text: `fields` finds the fields of lines and the numbers they spell."""
