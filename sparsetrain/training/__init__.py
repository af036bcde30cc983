# SPDX-License-Identifier: Apache-2.0
"""Training: the trainer, its steps, runs and saved models."""
