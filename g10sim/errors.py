"""Errors a user can meet. Each message names the place, what was found and what is allowed."""

from __future__ import annotations

from g10sim.text import printable

_MOST_CHARACTERS = 1_500


class G10SimError(Exception):
    """Base of every error that g10sim raises on purpose.

    Its text is one line of printable characters, whatever was found: others are shown as escapes, and the
    middle of a very long line is left out.
    """

    def __str__(self) -> str:
        """Return the message with unprintable characters escaped."""
        text = printable(super().__str__().translate({ord(c): " " for c in "\n\r\t"}))
        half = _MOST_CHARACTERS // 2
        return text if len(text) <= _MOST_CHARACTERS else f"{text[:half]} ... {text[-half:]}"


class ConfigError(G10SimError, ValueError):
    """A run configuration, system description or command-line option is wrong."""


class TraceError(G10SimError, ValueError):
    """A trace file is unreadable or breaks a structural rule."""


class PlanError(G10SimError, ValueError):
    """A migration plan is unreadable or does not fit its trace."""


class PolicyError(G10SimError):
    """A policy could not be found, raised, or asked for something illegal."""


class CapacityError(G10SimError):
    """The workload cannot run on the system at all, whatever the policy does (a result, not a failure)."""


class UnsupportedError(G10SimError):
    """A policy declares that it cannot run this workload on this system (a result, not a failure)."""


class InvariantError(G10SimError):
    """A simulator invariant does not hold: a defect of g10sim, never of its input."""
