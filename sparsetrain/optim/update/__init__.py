# SPDX-License-Identifier: Apache-2.0
"""Update of a step: layout, kernels, the function that calls them, the compiled program."""
