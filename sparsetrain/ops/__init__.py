# SPDX-License-Identifier: Apache-2.0
"""Relax operators of this package, and the shapes that operators require."""
