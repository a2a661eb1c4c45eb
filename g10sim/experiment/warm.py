"""What every cell needs, done once: imported by the process that those of cells are copies of."""

from __future__ import annotations

import gc
import os
from contextlib import suppress

from g10sim.errors import PolicyError
from g10sim.experiment.program import plug_in
from g10sim.experiment.workers import POLICIES


def _look_at_code() -> None:
    """Import the policies and hash their code, which this process and its copies have loaded."""
    for policy in os.environ.pop(POLICIES, "").split(","):
        with suppress(PolicyError):
            _ = plug_in(policy).program
    gc.freeze()  # copies share what is there now, and do not search it for cycles


_look_at_code()
