"""Runs tests against mutants, each in a process of its own that is forked once everything is imported.

A first pass without any change notes how long each test takes and which lines it runs. A mutant then meets
the tests that run its statement, quickest first, until one fails. It changes the program in memory only.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import resource
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FunctionType
from typing import TypeAlias

import coverage
import pytest

from benchmarks.mutants import Mutant, defaults_in, mutants_of, sample
from g10sim.cli.output import say

ROOT = Path(__file__).parents[1]
MODULES = ("sim", "hardware", "stats", "policies")
TESTS = tuple(f"tests/{name}" for name in (*MODULES, "flash", "pools"))
KILLED, SURVIVED = "killed", "survived"

_OPTIONS = ("-o", "addopts=", "-s", "-p", "no:cacheprovider", "-p", "no:terminal")
# Tests that take longer than so many seconds, while their lines are noted, are left out.
_SLOWEST_SECONDS = 1
_STUCK_SECONDS = 120
# A test may take this many times as long as without a change, and so many seconds more.
_SLOWER, _GRACE_SECONDS = 10, 5
# Others use the machine, too: time on the wall may be so many times that.
_IDLER = 20
_MEMORY_BYTES = 6 << 30
_ENDLESS = "(does not end)"


Lines: TypeAlias = dict[str, list[int]]


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant, and the test that noticed it."""

    mutant: Mutant
    outcome: str
    test: str


@dataclass(frozen=True)
class Profile:
    """What a test costs in CPU seconds, and the lines of each module that it runs."""

    seconds: float
    lines: Mapping[str, frozenset[int]]

    def runs(self, mutant: Mutant) -> bool:
        """Tell whether the test runs the statement that a mutant changes."""
        return not self.lines.get(mutant.module, frozenset()).isdisjoint(mutant.lines)


def draw(count: int, seed: int, modules: Iterable[str] = MODULES) -> list[Mutant]:
    """Draw about ``count`` mutants of modules, or of packages, of the program."""
    package = ROOT / "g10sim"
    defaults = defaults_in(sorted(package.rglob("*.py")))
    found = ([package / name] if name.endswith(".py") else (package / name).rglob("*.py") for name in modules)
    paths = (path for group in found for path in sorted(group))
    return sample([mutant for path in paths for mutant in mutants_of(path, ROOT, defaults)], count, seed)


class Tester:
    """A pytest plug-in that meets mutants with tests instead of running them.

    ``budget_seconds`` of CPU time are spent on a mutant at most; ``workers`` are met at a time.
    """

    def __init__(
        self,
        mutants: Sequence[Mutant],
        tests: Sequence[str],
        profiles: Path,
        budget_seconds: float,
        workers: int,
        tell: Callable[[Verdict], None],
    ) -> None:
        self._mutants, self._tests, self._store, self._tell = mutants, tests, profiles, tell
        self._budget, self._workers = budget_seconds, workers
        self.verdicts: list[Verdict] = []

    def run(self) -> None:
        """Collect the tests and let them meet all mutants."""
        os.environ.pop("G10SIM_REFERENCE", None)
        paths = [str(ROOT / name) for name in self._tests]
        status = pytest.main([*_OPTIONS, "--rootdir", str(ROOT), *paths], plugins=[self])
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise SystemExit(f"the tests cannot be collected: pytest ended with {status!r}")

    def pytest_configure(self) -> None:
        """Let property tests draw the same examples each time, and stop at the first that fails."""
        from hypothesis import Phase, settings  # pytest prepares its plug-ins before they are imported

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", derandomize=True, database=None, phases=phases)
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Meet the mutants; pytest itself runs nothing."""
        profiles = self._profiles(session)
        known = [item for item in session.items if item.nodeid in profiles]
        items = sorted(known, key=lambda item: profiles[item.nodeid].seconds)
        functions = _functions()
        gc.freeze()
        running: dict[int, tuple[Mutant, int]] = {}
        todo = iter(self._mutants)
        while True:
            while len(running) < self._workers and (mutant := next(todo, None)) is not None:
                seen = [item for item in items if profiles[item.nodeid].runs(mutant)]
                pid, channel = self._fork(session, mutant, seen, profiles, functions)
                running[pid] = mutant, channel
            if not running:
                return True
            pid, status = os.wait()
            verdict = _verdict(*running.pop(pid), status)
            self.verdicts.append(verdict)
            self._tell(verdict)

    def _fork(
        self,
        session: pytest.Session,
        mutant: Mutant,
        items: Sequence[pytest.Item],
        profiles: Mapping[str, Profile],
        functions: Mapping[tuple[str, str], list[FunctionType]],
    ) -> tuple[int, int]:
        """Start a process that meets one mutant; it writes the name of the test that fails."""
        code = mutant.code()
        assert code is not None
        changed = [
            function
            for function in functions[mutant.module, mutant.function]
            if function.__code__.co_firstlineno == code.co_firstlineno
        ]
        if not changed:
            raise SystemExit(f"{mutant.name}: no such function is in memory")
        here, there = os.pipe()
        pid = os.fork()
        if pid:
            os.close(there)
            return pid, here
        try:
            for function in changed:
                function.__code__ = code
            failed = self._first_failing(session, items, profiles)
            os.write(there, failed.encode())
            os._exit(1 if failed else 0)
        finally:
            os._exit(2)

    def _first_failing(
        self, session: pytest.Session, items: Sequence[pytest.Item], profiles: Mapping[str, Profile]
    ) -> str:
        """Run tests until one fails; return its name, or nothing if none does within the budget."""
        _be_quiet()
        for item, following in _in_turn(items):
            _limit(profiles[item.nodeid].seconds)
            try:
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            except BaseException:
                return item.nodeid
            if session.testsfailed:
                return item.nodeid
            if time.process_time() > self._budget:
                break
        return ""

    def _profiles(self, session: pytest.Session) -> dict[str, Profile]:
        """Return the profile of every test that passes; test files that have changed are profiled anew."""
        files: dict[Path, list[pytest.Item]] = defaultdict(list)
        for item in session.items:
            files[item.path].append(item)
        shared = _digest([*ROOT.glob("g10sim/**/*.py"), *ROOT.glob("tests/*.py")])
        self._store.mkdir(parents=True, exist_ok=True)
        kept = {path: self._store / f"{_digest([path], shared)}.json" for path in files}
        stale = iter([path for path, place in kept.items() if not place.is_file()])
        running: dict[int, Path] = {}
        while True:
            while len(running) < self._workers and (path := next(stale, None)) is not None:
                running[_note_profile(session, files[path], kept[path])] = path
            if not running:
                break
            pid, status = os.wait()
            path = running.pop(pid)
            if status:
                say(f"{path}: left out, its tests do not end by themselves")
        return {
            name: Profile(seconds, {module: frozenset(lines) for module, lines in found.items()})
            for place in kept.values()
            if place.is_file()
            for name, (seconds, found) in json.loads(place.read_text()).items()
        }


def _note_profile(session: pytest.Session, items: Sequence[pytest.Item], place: Path) -> int:
    """Start a process that runs a file of tests and writes seconds and lines of each that passes."""
    pid = os.fork()
    if pid:
        return pid
    try:
        _be_quiet()
        found = json.dumps(_profile(session, items))
        part = place.with_suffix(".part")
        part.write_text(found)
        part.rename(place)
        os._exit(0)
    finally:
        os._exit(2)


class _Unfit(BaseException):
    """A test is of no use against mutants; no error, so that nobody looks for its cause."""


def _give_up(*_: object) -> None:
    raise _Unfit


def _profile(session: pytest.Session, items: Sequence[pytest.Item]) -> dict[str, tuple[float, Lines]]:
    """Run tests; return seconds and lines of each that passes."""
    sources = [f"{ROOT}/g10sim/{name}/*" for name in MODULES]
    measure = coverage.Coverage(data_file=None, include=sources, config_file=False)
    passed: dict[str, float] = {}
    for limit in (signal.SIGVTALRM, signal.SIGALRM):
        signal.signal(limit, _give_up)
    BaseProcess.start = _give_up  # other processes import the program as it is: their tests notice nothing
    measure.start()
    for item, following in _in_turn(items):
        measure.switch_context(item.nodeid)
        failures, start = session.testsfailed, time.process_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, _SLOWEST_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, _STUCK_SECONDS, _STUCK_SECONDS)
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if session.testsfailed == failures:
            passed[item.nodeid] = time.process_time() - start
    measure.stop()
    lines: dict[str, Lines] = {name: {} for name in passed}
    data = measure.get_data()
    for path in data.measured_files():
        module = Path(path).relative_to(ROOT).as_posix()
        for line, names in data.contexts_by_lineno(path).items():
            for name in passed.keys() & set(names):
                lines[name].setdefault(module, []).append(line)
    return {name: (seconds, lines[name]) for name, seconds in passed.items()}


def _functions() -> dict[tuple[str, str], list[FunctionType]]:
    """Return the functions of the program that are in memory, by module and qualified name."""
    found: dict[tuple[str, str], list[FunctionType]] = defaultdict(list)
    package = f"{ROOT}/g10sim/"
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename.startswith(package):
            module = Path(one.__code__.co_filename).relative_to(ROOT).as_posix()
            found[module, one.__code__.co_qualname].append(one)
    return found


def _in_turn(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    """Yield every test with the one after it."""
    return zip_longest(items, items[1:])


def _be_quiet() -> None:
    """Write to nowhere from now on, and leave no image of memory behind."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit(seconds: float) -> None:
    """Let the system end this process if it takes much longer than a test does without a change."""
    allowed = _GRACE_SECONDS + _SLOWER * seconds
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + allowed) + 1, hard))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    signal.alarm(int(_IDLER * allowed))


def _verdict(mutant: Mutant, channel: int, status: int) -> Verdict:
    with os.fdopen(channel, "rb") as pipe:
        test = pipe.read().decode()
    if os.WIFSIGNALED(status):
        return Verdict(mutant, KILLED, _ENDLESS)
    if os.WEXITSTATUS(status) > 1:
        raise SystemExit(f"{mutant.name}: the process that meets it has failed")
    return Verdict(mutant, KILLED if test else SURVIVED, test)


def _digest(paths: Iterable[Path], salt: str = "") -> str:
    texts = b"".join(path.read_bytes() for path in sorted(paths))
    return hashlib.sha256(salt.encode() + texts).hexdigest()
