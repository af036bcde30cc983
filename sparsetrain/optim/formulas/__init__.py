# SPDX-License-Identifier: Apache-2.0
"""The optimizers of this package: one file each, with the formula and its constructor.

In order of complexity: `sgd`, `momentum`, `adagrad`, `rowwise_adagrad`, `rmsprop`, `adam`,
`adamw`, `ftrl`.
"""
