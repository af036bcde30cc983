# SPDX-License-Identifier: Apache-2.0
"""What all sections of the settings share: strict, closed, frozen; and types with a range."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Finite = Annotated[float, Field(allow_inf_nan=False)]
Scale = Annotated[float, Field(ge=1e-37, le=1e37)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """No text becomes a number, no unknown key passes, nothing changes afterwards."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
