"""Faults in the middle of a sweep: nothing is lost, nothing is done twice, or the refusal is clear."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain

SEEDS = 6
PLUGIN = '''"""A policy that takes its time, and writes down when it plans."""
import os
import time

from g10sim.policies.interface.policy import Policy


class Slow(Policy):
    """Sleeps; ``seed`` tells its cells apart."""

    name, label, paper = "slow", "Slow", "none"

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed

    def plan(self, workload, system, behaviour):
        own = f"worker.{os.getpid()}"  # workers plan beside each other
        with open(own, "w") as file:
            file.write(str(os.getpid()))
        os.replace(own, "worker.pid")  # before the log, which is waited for
        with open("planned.log", "a") as log:
            log.write(f"{self.seed}\\n")
        time.sleep(float(os.environ.get("SLOW_SECONDS", "0.15")))
        return super().plan(workload, system, behaviour)
'''


class Sweep:
    """A sweep of some slow cells in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        save_trace(chain(4), directory / "chain.g10t")
        (directory / "slow_policy.py").write_text(PLUGIN)
        configuration = {
            "name": "faults",
            "workload": {"trace": "chain.g10t", "variation": {"magnitude": 0.1}},
            "system": {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "6 MiB"}},
            "policies": ["slow_policy:Slow"],
            "seed": list(range(SEEDS)),
            "output": "out",
        }
        (directory / "run.yaml").write_text(yaml.safe_dump(configuration))

    @property
    def output(self) -> Path:
        return self.directory / "out"

    def command(self, *options: str) -> list[str]:
        program = "from g10sim.cli.main import main; main()"
        return [sys.executable, "-c", program, "run", "run.yaml", *options]

    def start(self, *options: str, limit: int | None = None, **variables: str) -> subprocess.Popen[str]:
        """Start the sweep; with ``limit`` no file may grow beyond so many bytes, as on a full disk."""

        def restrict() -> None:
            if limit is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        return subprocess.Popen(
            self.command(*options),
            cwd=self.directory,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=restrict,
            start_new_session=True,
        )

    def run(self, *options: str, **more: object) -> tuple[int, str]:
        """Run the sweep to its end; exit code and what it wrote on standard error."""
        process = self.start(*options, **more)  # type: ignore[arg-type]
        _, errors = process.communicate(timeout=300)
        assert "Traceback" not in errors, errors
        return process.returncode, errors

    def complete(self) -> None:
        """Run what is left of the sweep; every cell must succeed."""
        code, errors = self.run("-j", "2", SLOW_SECONDS="0")
        assert code == 0, errors

    def finished(self) -> int:
        return sum(1 for path in (self.output / "cells").glob("*.json"))

    def wait_for(self, cells: int) -> None:
        for _ in range(600):
            if self.output.is_dir() and self.finished() >= cells:
                return
            time.sleep(0.05)
        raise AssertionError(f"{self.finished()} of {cells} cells after 30 s")

    def planned(self) -> int:
        log = self.directory / "planned.log"
        return len(log.read_text().split()) if log.exists() else 0

    def results(self) -> bytes:
        return (self.output / "results.csv").read_bytes()


@cache
def _expected() -> bytes:
    with TemporaryDirectory() as directory:
        sweep = Sweep(Path(directory) / "undisturbed")
        sweep.complete()
        return sweep.results()


def killed(directory: Path) -> str:
    """The whole run is killed (SIGKILL) and started again."""
    sweep = Sweep(directory / "killed")
    process = sweep.start("-j", "2")
    sweep.wait_for(3)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    time.sleep(0.3)
    kept, before = sweep.finished(), sweep.planned()
    sweep.complete()
    assert sweep.results() == _expected()
    assert sweep.planned() - before == SEEDS - kept
    return f"{kept} cells kept, {SEEDS - kept} run again, same results"


def worker_killed(directory: Path) -> str:
    """The process that simulates a cell is killed (SIGKILL); the run goes on."""
    sweep = Sweep(directory / "worker")
    process = sweep.start("-j", "1", SLOW_SECONDS="0.3")
    sweep.wait_for(2)
    begun = sweep.planned()
    while sweep.planned() == begun:
        time.sleep(0.02)
    time.sleep(0.1)
    os.kill(int((sweep.directory / "worker.pid").read_text()), signal.SIGKILL)
    _, errors = process.communicate(timeout=300)
    assert "Traceback" not in errors, errors
    assert process.returncode == 1, errors
    assert "killed by signal SIGKILL" in sweep.results().decode()
    assert sweep.planned() == SEEDS
    sweep.complete()
    assert sweep.results() == _expected()
    assert sweep.planned() == SEEDS + 1
    return "its cell is recorded as failed; the next run repeats it alone"


def disk_full(directory: Path) -> str:
    """No file can be written any more; later there is room again."""
    sweep = Sweep(directory / "full")
    # Python takes as much of a compiled module as it could write for the whole module.
    code, errors = sweep.run("-j", "1", limit=200, PYTHONDONTWRITEBYTECODE="1")
    assert code in (1, 2), (code, errors)
    assert "cannot be written" in errors
    for path in (sweep.output / "cells").glob("*.json") if sweep.output.is_dir() else ():
        json.loads(path.read_text())
    sweep.complete()
    assert sweep.results() == _expected()
    return f"exit code {code}, nothing half-written; the next run completes"


def directory_removed(directory: Path) -> str:
    """The output directory is removed while cells run."""
    sweep = Sweep(directory / "removed")
    process = sweep.start("-j", "2", SLOW_SECONDS="0.4")
    sweep.wait_for(2)
    shutil.rmtree(sweep.output)
    _, errors = process.communicate(timeout=300)
    assert "Traceback" not in errors, errors
    code = process.returncode
    assert code in (1, 2), (code, errors)
    sweep.complete()
    assert sweep.results() == _expected()
    return f"exit code {code} and a message; the next run completes"


def clock_jumps(directory: Path) -> str:
    """The computer's clock jumps back and forth while cells run."""
    sweep = Sweep(directory / "clock")
    (sweep.directory / "sitecustomize.py").write_text(
        "import random, time\n"
        "real = time.time\n"
        "time.time = lambda: real() + random.choice([-10**6, 0, 10**6])\n"
    )
    paths = (str(sweep.directory), os.environ.get("PYTHONPATH"))
    assert sweep.run("-j", "2", PYTHONPATH=os.pathsep.join(filter(None, paths)))[0] == 0
    assert sweep.results() == _expected()
    return "same results"


def two_at_once(directory: Path) -> str:
    """Two runs of one sweep write the same directory at the same time."""
    sweep = Sweep(directory / "twice")
    runs = [sweep.start("-j", "1") for _ in range(2)]
    ended = [(run.communicate(timeout=300)[1], run.returncode) for run in runs]
    assert all("Traceback" not in errors for errors, _ in ended), ended
    codes = sorted(code for _, code in ended)
    assert codes in ([0, 0], [0, 2]), ended
    if codes == [0, 2]:
        assert any("is being written" in errors for errors, code in ended if code == 2), ended
    assert sweep.planned() == SEEDS
    assert sweep.results() == _expected()
    return (
        "the second is refused while the first runs"
        if codes == [0, 2]
        else "the second, begun after the first, runs no cell again"
    )


FAULTS: tuple[Callable[[Path], str], ...] = (
    killed,
    worker_killed,
    disk_full,
    directory_removed,
    clock_jumps,
    two_at_once,
)
