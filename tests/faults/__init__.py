# SPDX-License-Identifier: Apache-2.0
"""Scripts that hurt runs on purpose; `tests/test_faults.py` starts them."""
