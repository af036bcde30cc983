# SPDX-License-Identifier: Apache-2.0
"""Optimizer updates on a GPU: touched rows, whole parameters, all dense parameters at once."""
