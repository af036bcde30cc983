# SPDX-License-Identifier: Apache-2.0
"""Updates inside the gradient program: `layout` (which), `kernels`, `updates` (put behind it)."""
