# SPDX-License-Identifier: Apache-2.0
"""The update of a step: layout, kernels, the function that calls them, the compiled program."""
