"""Damaged directories of results: every command reads what is whole, or refuses in one line."""

import random
import shutil
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryFile

import yaml
from damage import damaged, flipped

from g10sim.cli.main import main
from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain

CONFIGURATION = {
    "name": "fuzz",
    "workload": {"trace": "chain.g10t"},
    "system": {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "8 MiB"}, "host": {"memory": "4 MiB"}},
    "policies": ["base_uvm", "deepum"],
    "record": ["summary", "kernels", "migrations", "memory", "timeline"],
    "output": "out",
}
COMMANDS = {
    "explain out --cell 0": 8,
    "explain out --cell 1 --kernel 3": 6,
    "run run.yaml": 8,
    "plot timeline --results out --cell 0": 1,
    "plot memory --results out --cell 1": 1,
    "report out": 1,
}
"""Commands that read results, and how often each is tried: drawing takes seconds."""
OUTCOMES = {0: "read", 1: "failed", 2: "refused"}


class Directories:
    """A directory of results, to be damaged."""

    def __init__(self, directory: Path) -> None:
        self._here = directory
        save_trace(chain(8), directory / "chain.g10t")
        (directory / "run.yaml").write_text(yaml.safe_dump(CONFIGURATION, sort_keys=False))
        with chdir(directory):
            code, errors = _ended("run run.yaml")
        assert code == 0, errors
        (directory / "out").rename(directory / "whole")

    def outcome(self, seed: int) -> str:
        """Damage files and run a command: ``read``, ``failed`` or ``refused``.

        Raises whatever must not happen.
        """
        draw = random.Random(seed)
        here = self._here
        shutil.rmtree(here / "out", ignore_errors=True)
        shutil.copytree(here / "whole", here / "out")
        for _ in range(draw.choice((1, 1, 2, 3))):
            files = sorted(path for path in (here / "out").rglob("*") if path.is_file())
            draw.choice(DAMAGES)(draw.choice(files), draw)
        (command,) = draw.choices(list(COMMANDS), list(COMMANDS.values()))
        with chdir(here):
            code, errors = _ended(command)
        assert code in OUTCOMES, f"{command}: exit code {code}: {errors}"
        assert "Traceback" not in errors, f"{command}: {errors}"
        lines = errors.splitlines()
        assert all(line.isprintable() for line in lines), f"{command}: {errors!r}"
        assert not code or lines, f"{command}: exit code {code} without a word"
        if command.startswith("run") and not code:
            same = (here / "out/results.csv").read_bytes() == (here / "whole/results.csv").read_bytes()
            assert same, f"{command}: other results than before"
        return f"{command.split()[0]} {OUTCOMES[code]}"


def _ended(command: str) -> tuple[object, str]:
    """Run a command; return its exit code and what it wrote to standard error."""
    arguments, path = sys.argv, sys.path[:]
    sys.argv = ["g10sim", *command.split()]
    code: object = "none"
    with TemporaryFile("w") as output, TemporaryFile("w+") as errors:
        try:
            with redirect_stdout(output), redirect_stderr(errors):
                main()
        except SystemExit as ended:
            code = ended.code
        finally:
            sys.argv, sys.path[:] = arguments, path
        errors.seek(0)
        return code, errors.read()


def _changed(path: Path, draw: random.Random) -> None:
    path.write_bytes(flipped(path.read_bytes(), draw))


def _cut(path: Path, draw: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: draw.randrange(len(data) + 1)])


def _edited(path: Path, draw: random.Random) -> None:
    path.write_bytes(damaged(path.read_bytes().decode("utf-8", "replace"), draw))


def _removed(path: Path, draw: random.Random) -> None:
    path.unlink()


def _exchanged(path: Path, draw: random.Random) -> None:
    files = sorted(other for other in path.parent.iterdir() if other.is_file())
    shutil.copy(draw.choice(files), path.parent / "exchanged")
    (path.parent / "exchanged").rename(path)


def _directory(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    _changed, _cut, _edited, _edited, _removed, _exchanged, _directory
)  # fmt: skip
