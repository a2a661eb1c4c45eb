"""Times of single operators that a GPU description sets apart from their class."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from g10sim.capture.operator_kinds import Bound, KernelCost, OperatorClass
from g10sim.config.quantities import Duration, PositiveRate, Spec
from g10sim.trace.model import Phase

Share = Annotated[float, Field(gt=0, le=1)]

_CONDITIONS = (
    "operators",
    "operator_class",
    "layer_types",
    "phase",
    "reads_weight",
    "bound",
    "least_products",
)


class Refinement(Spec):
    """Which kernels it is about (all conditions that are given hold), and what is different for them.

    A share that is not given is that of the class. ``startup`` is time besides computing and moving; with
    it the share reached grows with size s as s / (s + half), where half = startup x share x peak rate.
    ``weight_bandwidth`` adds the time of passing over the weights that a kernel reads (to transpose them).
    """

    operators: tuple[str, ...] | None = Field(default=None, description="names, such as addmm")
    operator_class: OperatorClass | None = None
    layer_types: tuple[str, ...] | None = Field(default=None, description="classes of modules")
    phase: Phase | None = None
    reads_weight: bool | None = None
    bound: Bound | None = Field(default=None, description="peak rate that limits it")
    least_products: int | None = Field(default=None, ge=1, description="multiply-adds for each element")
    compute_efficiency: Share | None = None
    bandwidth_efficiency: Share | None = None
    startup: Duration | None = None
    weight_bandwidth: PositiveRate | None = None

    @model_validator(mode="after")
    def _about_something(self) -> Refinement:
        if all(getattr(self, name) is None for name in _CONDITIONS):
            raise ValueError(f"found no condition; allowed: at least one of {', '.join(_CONDITIONS)}")
        return self

    def covers(self, cost: KernelCost, bound: Bound) -> bool:
        """Tell whether a kernel, limited by this peak rate, meets every condition."""
        return all(
            (
                self.operators is None or cost.operator in self.operators,
                self.operator_class is None or cost.operator_class is self.operator_class,
                self.layer_types is None or cost.layer_type in self.layer_types,
                self.phase is None or cost.phase is self.phase,
                self.reads_weight is None or (cost.weight_bytes > 0) is self.reads_weight,
                self.bound is None or bound is self.bound,
                self.least_products is None or cost.products >= self.least_products,
            )
        )
