"""Preparation that every cell needs, done once: imported by the process that those of cells are copies of."""

from __future__ import annotations

import gc

import g10sim.experiment.execution  # noqa: F401
from g10sim.experiment.program import program
from g10sim.experiment.reads import note_from_start

program()
note_from_start()
gc.freeze()  # copies share what is there now, and do not search it for cycles
