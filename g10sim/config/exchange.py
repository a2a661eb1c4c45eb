"""How data-parallel replicas exchange gradients."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from g10sim.config.quantities import PositiveBytes, Spec
from g10sim.units import parse_bytes


class ExchangeSpec(Spec):
    """Exchange of gradients, bucket by bucket, while the backward pass goes on.

    A bucket is sent when every replica has computed all of its gradients; the default size is that of
    PyTorch's DistributedDataParallel (``bucket_cap_mb``).
    """

    method: Literal["ring", "host", "none"] = Field(
        default="ring",
        description="ring: all-reduce around a ring of the GPUs; host: each GPU sends its gradients to the"
        " host, which adds them up, and fetches the sums; none: replicas do not wait for each other",
    )
    bucket: PositiveBytes = Field(
        default=parse_bytes("25 MiB"),
        validate_default=False,
        json_schema_extra={"default": "25 MiB"},
        description="gradients that are sent together, at least",
    )
