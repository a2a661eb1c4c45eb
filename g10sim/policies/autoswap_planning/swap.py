"""A planned absence from the GPU."""

from __future__ import annotations

from dataclasses import dataclass

from g10sim.policies.autoswap_planning.candidates import Candidate


@dataclass(frozen=True, slots=True)
class Swap:
    """A planned absence: its memory is free in operations ``gone`` to ``back`` - 1.

    The copy out begins at the start of operation ``candidate.start`` or as soon as those before it are done,
    the copy in with operation ``back``; among copies that begin with the same one, ``in_time`` says which
    is first.
    """

    candidate: Candidate
    gone: int
    back: int
    in_time: int
