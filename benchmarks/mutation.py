"""Runs tests against mutants, each in its own process that is forked once everything is imported.

A first pass without any change notes how long each test takes and which lines it runs. A mutant then meets
the tests that run its statement, until one fails: first those that are quick for how much of what they run
lies in its module. It changes the program in memory only.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice, zip_longest
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FunctionType
from typing import TypeAlias

import coverage
import pytest

from benchmarks.mutants import Mutant, defaults_in, mutants_of, sample
from g10sim.cli.output import say

ROOT = Path(__file__).parents[1]
MODULES = ("sim", "hardware", "results", "policies", "importers", "sizing")
_ABOVE = ("analysis", "cli", "config", "experiment", "flash", "metamorphic", "plots", "pools", "recorded")
TESTS = tuple(f"tests/{name}" for name in (*MODULES[:-1], *_ABOVE, "trace"))
KILLED, SURVIVED = "killed", "survived"

_OPTIONS = ("-o", "addopts=", "-m", "not slow and not nightly", "-s", "-pno:cacheprovider", "-pno:terminal")
# Tests that take more CPU seconds than that, while their lines are noted, are left out.
_SLOWEST_SECONDS = 5
_STUCK_SECONDS = 120
# A test may take this many times as long as without a change, and that many seconds more.
_SLOWER, _GRACE_SECONDS = 10, 5
# Others use the machine, too: time on the wall may be that many times that.
_IDLER = 20
_MEMORY_BYTES = 6 << 30
_ENDLESS = "(does not end)"


Lines: TypeAlias = dict[str, list[int]]


@dataclass(frozen=True)
class Verdict:
    """Outcome of a mutant, and the test that noticed it."""

    mutant: Mutant
    outcome: str
    test: str


@dataclass(frozen=True)
class Profile:
    """Cost of a test in CPU seconds, and the lines of each module that it runs."""

    seconds: float
    lines: Mapping[str, frozenset[int]]

    def runs(self, mutant: Mutant) -> bool:
        """Return whether the test runs the statement that a mutant changes."""
        return not self.lines.get(mutant.module, frozenset()).isdisjoint(mutant.lines)

    def price(self, mutant: Mutant) -> float:
        """Return CPU seconds over the share of the lines that are of the mutant's module, which it runs."""
        return self.seconds * sum(map(len, self.lines.values())) / len(self.lines[mutant.module])


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

    def run(self) -> None:
        """Collect the tests and let them meet all mutants."""
        os.environ.pop("G10SIM_REFERENCE", None)
        os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # threads of the others do not survive a fork
        paths = [str(ROOT / name) for name in self._tests]
        status = pytest.main([*_OPTIONS, "--rootdir", str(ROOT), *paths], plugins=[self])
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise SystemExit(f"the tests cannot be collected: pytest ended with {status!r}")

    def pytest_configure(self) -> None:
        """Let property tests draw the same examples each time, and stop at the first that fails."""
        from hypothesis import Phase, settings  # pytest prepares its plug-ins before they are imported

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", derandomize=True, database=None, deadline=None, phases=phases)
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Meet the mutants; pytest itself runs nothing."""
        for mutant in self._mutants:
            import_module(mutant.module.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        functions = _functions()
        gc.freeze()  # no fork copies memory to look for garbage
        profiles = self._profiles(session)
        items = [item for item in session.items if item.nodeid in profiles]
        running: dict[int, tuple[Mutant, int]] = {}
        todo = iter(self._mutants)
        while True:
            while len(running) < self._workers and (mutant := next(todo, None)) is not None:
                seen = {item: profiles[item.nodeid] for item in items}
                seen = {item: profile for item, profile in seen.items() if profile.runs(mutant)}
                chosen = dict(sorted(seen.items(), key=lambda pair: pair[1].price(mutant)))
                pid, channel = self._fork(session, mutant, chosen, functions)
                running[pid] = mutant, channel
            if not running:
                return True
            pid, status = os.wait()
            self._tell(_verdict(*running.pop(pid), status))

    def _fork(
        self,
        session: pytest.Session,
        mutant: Mutant,
        tests: Mapping[pytest.Item, Profile],
        functions: Mapping[tuple[str, str], list[FunctionType]],
    ) -> tuple[int, int]:
        """Start a process that meets one mutant; it writes the name of the test that fails."""
        code = mutant.code()
        assert code is not None
        known, first = functions[mutant.module, mutant.function], code.co_firstlineno
        changed = [function for function in known if function.__code__.co_firstlineno == first]
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
            failed = self._first_failing(session, tests)
            os.write(there, failed.encode())
            os._exit(1 if failed else 0)
        finally:
            os._exit(2)

    def _first_failing(self, session: pytest.Session, tests: Mapping[pytest.Item, Profile]) -> str:
        """Run tests until one fails; return its name, or nothing if none does within the budget."""
        _be_quiet()
        for item, following in zip_longest(tests, islice(tests, 1, None)):
            _limit(tests[item].seconds)
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
        """Return the profile of every test that passes in time, noted again where files changed."""
        shared = _digest([*ROOT.glob("g10sim/**/*.py"), *ROOT.glob("tests/*.py")])
        digests = {path: _digest([path], shared) for path in {item.path for item in session.items}}
        self._store.mkdir(parents=True, exist_ok=True)
        kept = {
            item: self._store / digests[item.path] / f"{_hash(item.nodeid.encode())}.json"
            for item in session.items
        }
        stale = iter([item for item, place in kept.items() if not place.is_file()])
        running: dict[int, pytest.Item] = {}
        while True:
            while len(running) < self._workers and (item := next(stale, None)) is not None:
                running[_note_profile(session, item, kept[item])] = item
            if not running:
                break
            pid, status = os.wait()
            if status:
                kept[running[pid]].write_text("null")
            del running[pid]
        found = {item.nodeid: json.loads(place.read_text()) for item, place in kept.items()}
        unfit = [name for name, noted in found.items() if noted is None]
        if unfit:
            say(f"{len(unfit)} of {len(found)} tests are left out: they fail, take long, or run nothing here")
        return {
            name: Profile(noted[0], {module: frozenset(lines) for module, lines in noted[1].items()})
            for name, noted in found.items()
            if noted is not None
        }


def _note_profile(session: pytest.Session, item: pytest.Item, place: Path) -> int:
    """Start a process that writes seconds and lines of a test; it fails where the test does or takes long.

    its own process, as another test may have prepared what this one needs.
    """
    place.parent.mkdir(exist_ok=True)
    pid = os.fork()
    if pid:
        return pid
    try:
        _be_quiet()
        signal.setitimer(signal.ITIMER_PROF, _SLOWEST_SECONDS)
        signal.alarm(_STUCK_SECONDS)
        noted = json.dumps(_profile(session, item))
        part = place.with_suffix(".part")
        part.write_text(noted)
        part.rename(place)
        os._exit(0)
    finally:
        os._exit(2)


def _profile(session: pytest.Session, item: pytest.Item) -> tuple[float, Lines] | None:
    """Run a test; return its seconds and lines if it passes."""
    measure = coverage.Coverage(data_file=None, include=[f"{ROOT}/g10sim/*"], config_file=False)
    BaseProcess.start = _refuse  # other processes import the program as it is: their tests notice nothing
    measure.start()
    start = time.process_time()
    session.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    seconds = time.process_time() - start
    measure.stop()
    if session.testsfailed:
        return None
    data = measure.get_data()
    lines = {Path(path): data.lines(path) or [] for path in data.measured_files()}
    return seconds, {path.relative_to(ROOT).as_posix(): sorted(found) for path, found in lines.items()}


def _refuse(*_: object) -> None:
    raise AssertionError("a test that starts processes is of no use against mutants")


def _functions() -> dict[tuple[str, str], list[FunctionType]]:
    """Return the functions of the program that are in memory, by module and qualified name."""
    found: dict[tuple[str, str], list[FunctionType]] = defaultdict(list)
    package = f"{ROOT}/g10sim/"
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename.startswith(package):
            module = Path(one.__code__.co_filename).relative_to(ROOT).as_posix()
            found[module, one.__code__.co_qualname].append(one)
    return found


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
    return _hash(salt.encode() + b"".join(path.read_bytes() for path in sorted(paths)))


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]
