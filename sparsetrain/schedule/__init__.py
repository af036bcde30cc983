# SPDX-License-Identifier: Apache-2.0
"""How a Relax module becomes fast on a target."""

from .pipeline import pipeline as pipeline
