# SPDX-License-Identifier: Apache-2.0
"""The optimizers of this package, a file each: a formula for one element, and its constructor.

From the simplest on: `sgd`, `momentum`, `adagrad`, `rowwise_adagrad`, `rmsprop`, `adam`, `adamw`,
`ftrl`.
"""
