# SPDX-License-Identifier: Apache-2.0
"""How a Relax module becomes fast on a target."""

from .kept_memory import KINDS as KINDS
from .kept_memory import NEEDS as NEEDS
from .pipeline import pipeline as pipeline
