"""How far kernel times of an execution depart from those of the trace."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from g10sim.config.quantities import Spec


class VariationSpec(Spec):
    """Random factors by which kernel times are multiplied after planning (G10 paper, figure 19).

    With magnitude v the factors are uniform in [1 - v, 1 + v], or normal with mean 1 and standard
    deviation v, truncated to between 0 and 2, which keeps times positive and the mean at 1.
    """

    distribution: Literal["uniform", "normal"] = Field(
        default="uniform",
        description="uniform: in [1 - magnitude, 1 + magnitude]; normal: standard deviation magnitude,"
        " truncated to between 0 and 2",
    )
    magnitude: float = Field(
        strict=True, ge=0, lt=1, allow_inf_nan=False, description="how far the factors depart from 1"
    )
