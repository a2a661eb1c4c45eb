"""Tables and lines on standard output, and errors.

An error is one line on standard error, and an exit code.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from g10sim.errors import G10SimError, few, notes_of, printable
from g10sim.grouping import grouped

CELL_FAILED, OUTPUT_LOST, BAD_INPUT, ALL_UNSUPPORTED, INTERRUPTED = 1, 1, 2, 3, 130
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
_MORE = "allowed: a higher limit (ulimit -a shows them), or fewer workers (-j)"
_PIPED_WIDTH = 250
_FAILURES_NAMED = 3


class SafeConsole(Console):
    """A console that writes unprintable characters of names and messages as escapes.

    A terminal would obey them: clear the screen, change its title, or show text in another order. Names
    between colons stay as they are.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"emoji": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as usual, each piece of text without control characters."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                lines = (printable(line) for line in segment.text.split("\n"))
                yield Segment("\n".join(lines), segment.style)


class InterruptionError(G10SimError):
    """Raised on Ctrl-C by a command that can say what is finished."""


def exit_code(command: Callable[[], object]) -> int:
    """Run a command and return its exit code; an error becomes one line on standard error.

    Bad input, of g10sim or of the command line itself, gives 2; an interruption 130; standard output that
    takes no more 1, without a word where nobody reads it.
    """
    try:
        status = _status(command)
        sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            complain(f"{error.filename}: cannot be read or written: {error.strerror}")
            return BAD_INPUT
        if error.errno in _EXHAUSTED:
            complain(f"this process may not have more files or memory: {error.strerror}; {_MORE}")
            return BAD_INPUT
        if error.strerror is None:  # what a library says, without a number
            complain(f"{error}")
            return BAD_INPUT
        if not isinstance(error, BrokenPipeError):
            complain(f"standard output: cannot be written: {error.strerror}")
        _discard(sys.stdout)
        return OUTPUT_LOST
    return status


def _status(command: Callable[[], object]) -> int:
    try:
        status = command()
    except G10SimError as error:
        for text in (str(error), *notes_of(error)):
            complain(text)
        return INTERRUPTED if isinstance(error, InterruptionError) else BAD_INPUT
    except typer.TyperException as error:
        message = error.format_message()
        if message:  # none where a command without arguments has shown its help
            complain(message)
        return BAD_INPUT
    except MemoryError:
        complain(f"this process may not have more memory; {_MORE}")
        return BAD_INPUT
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    if status == INTERRUPTED:  # typer may turn the interruption into this exit code itself
        complain("interrupted")
    return status if isinstance(status, int) else 0


def complain(message: str) -> None:
    """Write an error to standard error, in one line however many the message has."""
    _tell(f"[bold red]error:[/] {escape(' '.join(message.split()))}")


def warn(message: str) -> None:
    """Write one line to standard error about what may not be meant."""
    _tell(f"[bold yellow]warning:[/] {escape(message)}")


def tell(text: str) -> None:
    """Write one line to standard error about how far a command is."""
    _tell(escape(text))


@contextmanager
def telling_what_is_read() -> Iterator[None]:
    """Write a line to standard error for each file that is read and each cell that is reused, while open."""
    handler, log = logging.Handler(), logging.getLogger("g10sim")
    handler.emit = lambda record: tell(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)


def _tell(line: str) -> None:
    console = SafeConsole(stderr=True, soft_wrap=True, highlight=False)
    try:
        console.print(line)
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Drop what a stream cannot write, which Python would try again at its end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)


def complain_of_failures(failures: Iterable[tuple[str, str]]) -> None:
    """Write one line for each reason with what failed for it; raises typer.Exit if there is one.

    Failures are pairs of what failed and the reason.
    """
    reasons = grouped((reason, name) for name, reason in failures)
    for reason, names in reasons.items():
        complain(f"{few(names, _FAILURES_NAMED)} failed: {reason}")
    if reasons:
        raise typer.Exit(CELL_FAILED)


def console() -> SafeConsole:
    """Return a console as wide as the terminal; where there is none, wide enough for any table."""
    return SafeConsole(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False)


def say(*texts: object) -> None:
    """Write texts as they are, not wrapped, one below the other."""
    screen = SafeConsole(soft_wrap=True, highlight=False)
    for text in texts:
        screen.print(str(text), markup=False)


def say_json(data: object) -> None:
    """Write data as JSON, in ASCII."""
    sys.stdout.write(json.dumps(data, indent=2) + "\n")


def show_table(
    names: Sequence[str], figures: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None
) -> None:
    """Write a table: columns of names to the left, columns of figures, right-aligned, after them.

    Lines break between words only. Where the names do not fit next to each other, they share a column.
    """
    screen, count = console(), len(names)
    lines = [[*names, *figures], *([printable(text) for text in row] for row in rows)]
    if sum(_widths(lines, 0)) > _room(screen, lines):
        lines = [[", ".join(filter(None, line[:count])), *line[count:]] for line in lines]
        count = 1
    table = Table(
        title=None if title is None else Text(title),
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, _PADDING, 0, 0),
        show_edge=False,
    )
    for number, width in enumerate(_widths(lines, _room(screen, lines))):
        justify: JustifyMethod = "left" if number < count else "right"
        table.add_column(Text(lines[0][number]), justify=justify, width=width, overflow="fold")
    for line in lines[1:]:
        table.add_row(*map(Text, line))
    screen.print(table, markup=False)


_PADDING, _DIVIDER = 1, 1


def _room(screen: Console, lines: Sequence[Sequence[str]]) -> int:
    """Return how many characters of a line the texts of a table may take together."""
    return screen.width - len(lines[0]) * (_PADDING + _DIVIDER) + _DIVIDER


def _widths(lines: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return widths of columns: the longest word, and of the room as much as is wanted, the modest first."""
    columns = list(zip(*lines, strict=True))
    least = [max(cell_len(word) for text in column for word in text.split() or [""]) for column in columns]
    lengths = (max(cell_len(part) for text in column for part in text.split("\n")) for column in columns)
    wanted = [length - width for length, width in zip(lengths, least, strict=True)]
    spare = max(0, room - sum(least))
    for place, number in enumerate(sorted(range(len(least)), key=wanted.__getitem__)):
        more = min(wanted[number], spare // (len(least) - place))
        least[number] += more
        spare -= more
    return least
