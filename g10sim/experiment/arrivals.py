"""When the copies of a job arrive."""

from __future__ import annotations

import numpy as np

from g10sim.config.run import JobSpec


def arrivals(job: JobSpec, seed: int, position: int) -> tuple[int, ...]:
    """Arrival of every copy of a job in picoseconds, the first at ``job.arrival``.

    A Poisson process has exponential gaps; they depend on the ``seed`` of the run and the job's ``position``
    among the jobs alone.
    """
    gaps = [job.interval] * (job.copies - 1)
    if job.arrivals == "poisson":
        generator = np.random.default_rng([seed, position])
        gaps = [round(gap) for gap in generator.exponential(job.interval, job.copies - 1)]
    times = [job.arrival]
    for gap in gaps:
        times.append(times[-1] + int(gap))
    return tuple(times)
