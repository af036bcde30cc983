# SPDX-License-Identifier: Apache-2.0
"""Updates on a GPU: touched rows, whole parameters, and all dense parameters at once."""
