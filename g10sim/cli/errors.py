"""How errors reach the person at the terminal: one line on standard error, and an exit code."""

from __future__ import annotations

from collections.abc import Callable

import typer
from rich.console import Console
from rich.markup import escape

from g10sim.errors import G10SimError

CELL_FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


class InterruptionError(G10SimError):
    """Somebody interrupted a command that can say what became of its work."""


def exit_code(command: Callable[[], object]) -> int:
    """Run a command and return its exit code; an error becomes one line on standard error.

    Bad input, of g10sim or of the command line itself, gives 2; an interruption 130.
    """
    try:
        status = command()
    except InterruptionError as error:
        complain(str(error))
        return INTERRUPTED
    except G10SimError as error:
        complain(str(error))
        return BAD_INPUT
    except typer.TyperException as error:
        message = error.format_message()
        if message:  # none where a command without arguments has shown its help
            complain(message)
        return BAD_INPUT
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    if status == INTERRUPTED:  # typer may turn the interruption into this exit code itself
        complain("interrupted; finished cells are kept")
    return status if isinstance(status, int) else 0


def complain(message: str) -> None:
    """Write one line to standard error, however many the message has."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"[bold red]error:[/] {escape(' '.join(message.split()))}")
