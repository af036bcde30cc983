# SPDX-License-Identifier: Apache-2.0
"""Row-sparse tensors on a GPU: sort ids, sum runs of equal ids, scatter rows."""
