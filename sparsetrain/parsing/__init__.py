# SPDX-License-Identifier: Apache-2.0
"""Kernels that read text: `fields` reads the fields of lines as numbers, `lookup` finds ids."""
