"""Cases of every kind, counted."""

import resource
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from directories import Directories
from files import READERS, Samples
from workloads import draw_case, outcome

MOST_MEMORY_BYTES = 10**9
KINDS = (*READERS, "results", "workload")
TITLES = {kind: f"damaged {kind} files" for kind in READERS}
TITLES |= {"results": "damaged directories of results", "workload": "random workloads"}


def tried(kind: str, cases: range) -> tuple[str, ...]:
    """Try the cases of a kind, by their seeds; return its row of the table."""
    with TemporaryDirectory() as scratch:
        if kind == "workload":
            row = _counted(TITLES[kind], lambda seed: outcome(draw_case(seed)), cases)
        elif kind == "results":
            row = _counted(TITLES[kind], Directories(Path(scratch)).outcome, cases)
        else:
            samples = Samples(Path(scratch))
            row = _counted(TITLES[kind], lambda seed: samples.outcome(kind, seed), cases)
    memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    name, *middle, failures, seconds = row
    too_much = memory_bytes > MOST_MEMORY_BYTES
    return name, *middle, str(failures + too_much), seconds, f"{memory_bytes / 1e6:.0f}"


def _counted(kind, attempt, cases):
    start, found, failures = time.perf_counter(), Counter(), 0
    for seed in cases:
        try:
            found[attempt(seed)] += 1
        except Exception as error:
            failures += 1
            sys.stderr.write(f"{kind}, seed {seed}: {type(error).__name__}: {error}\n")
    words = ", ".join(f"{count} {what}" for what, count in found.most_common())
    return kind, str(len(cases)), words, failures, f"{time.perf_counter() - start:.0f}"
