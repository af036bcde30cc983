# SPDX-License-Identifier: Apache-2.0
"""Row-sparse tensors on a GPU: ids put in order, runs of equal ones summed, rows scattered."""
