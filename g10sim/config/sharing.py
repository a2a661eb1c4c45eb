"""How jobs share one GPU."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from g10sim.config.quantities import PositiveDuration, Spec
from g10sim.units import parse_duration


class SharingSpec(Spec):
    """Whether jobs on one GPU take turns or run side by side, and who is let in when memory is short.

    Vendors do not publish the length of time slices; the default is of the order that GPUs show.
    """

    compute: Literal["exclusive", "time_sliced", "concurrent"] = Field(
        default="exclusive",
        description="exclusive: one job after another; time_sliced: jobs in turn, a time slice each;"
        " concurrent: kernels of all jobs at once, each slower",
    )
    time_slice: PositiveDuration = Field(
        default=parse_duration("2 ms"),
        validate_default=False,
        json_schema_extra={"default": "2 ms"},
        description="longest turn of a job of priority 1; priority p has p times as long (time_sliced)",
    )
    slowdown: float = Field(
        default=1.0,
        strict=True,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="how much each further job slows the others; n jobs run at 1 / (1 + (n - 1) slowdown)"
        " of their speed: 0 not at all, 1 as if they took turns (concurrent)",
    )
    admission: Literal["wait", "refuse"] = Field(
        default="wait",
        description="what becomes of a job that arrives while GPU memory is short:"
        " wait its turn, or be refused",
    )
    admission_memory: Literal["working_set", "live", "footprint"] = Field(
        default="working_set",
        description="what admitted jobs together must not need more of than GPU memory has: their largest"
        " working sets, their most live bytes, or their footprints",
    )
