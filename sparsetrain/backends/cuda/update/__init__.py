# SPDX-License-Identifier: Apache-2.0
"""Updates on a GPU: of touched rows, of whole parameters, of all dense parameters at once."""
