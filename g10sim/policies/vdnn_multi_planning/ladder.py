"""The steps from no offloading to planning for contention, and what each of them is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Step = Literal["K0", "K1", "K2", "K3", "K4"]
Offload = Literal["none", "conv", "contention_aware"]
Arbitration = Literal["machine", "fair", "first_come", "deadline"]
Prefetching = Literal["window", "planned"]


@dataclass(frozen=True)
class Ingredients:
    """What layers offload, whether they end with their copies, how links serve copies, when to prefetch."""

    offload: Offload
    layer_end_join: bool
    arbitration: Arbitration
    prefetch: Prefetching


LADDER: dict[Step, Ingredients] = {
    "K0": Ingredients("none", False, "fair", "window"),
    "K1": Ingredients("conv", True, "fair", "window"),
    "K2": Ingredients("conv", False, "fair", "window"),
    "K3": Ingredients("contention_aware", False, "deadline", "window"),
    "K4": Ingredients("contention_aware", False, "deadline", "planned"),
}
CHOSEN_BY_TRIAL: tuple[Step, ...] = ("K3", "K4")
"""Steps that are free to offload what they need, so that memory in pieces does not stop them."""
