# SPDX-License-Identifier: Apache-2.0
"""What is in data, for people: counts, ranges, frequencies."""
