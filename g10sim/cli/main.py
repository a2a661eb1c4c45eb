"""The command line: prepares the process, then imports and runs the commands."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from contextvars import ContextVar

_INTERRUPTED = 130
_IS_WHOLE_PROCESS = ContextVar("_IS_WHOLE_PROCESS", default=False)


def run_alone() -> None:
    """Run the command line in a process that does nothing else."""
    _IS_WHOLE_PROCESS.set(True)
    main()


def is_whole_process() -> bool:
    """Return whether this process runs a command and nothing else."""
    return _IS_WHOLE_PROCESS.get()


def main() -> None:
    """Run the command line and leave with its exit code."""
    listens = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if listens:
        signal.signal(signal.SIGINT, _leave)  # an exception could come out of any library that is imported
    gc.disable()  # what is imported stays: no search among it for what may go
    _open_streams()
    _put_working_directory_last()
    # It would search all installed packages for plug-ins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from g10sim.cli.later import import_on_first_use

    import_on_first_use("numpy")  # which takes longer than a run with nothing to do
    from g10sim.cli.commands import app, import_for
    from g10sim.cli.output import exit_code

    import_for(sys.argv[1:])
    gc.freeze()
    gc.enable()
    if listens:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = exit_code(lambda: app(standalone_mode=False))
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # the process ends, and all memory goes with it
    sys.exit(code)


def _leave(*_: object) -> None:
    os.write(2, b"error: interrupted\n")
    os._exit(_INTERRUPTED)


def _open_streams() -> None:
    """Open standard streams that are closed, or the next files would become them.

    Nothing can be written to what stands for standard output, so that a command notices.
    """
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), "r" if name == "stdin" else "w"))


def _put_working_directory_last() -> None:
    """Let no file in the working directory shadow a library, and ``module:Class`` name one there.

    A source tree that g10sim is run from keeps its place.
    """
    from pathlib import Path

    try:
        here = Path.cwd()
    except FileNotFoundError:  # it has been removed
        return
    source_tree = Path(__file__).resolve().parents[2]
    if not sys.flags.safe_path and sys.path[0] in ("", str(here)) and source_tree != here:
        del sys.path[0]
    if str(here) not in sys.path:
        sys.path.append(str(here))
