"""Sweeps on a real Dask cluster: processes of this machine, a scheduler with an address."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

import g10sim
from g10sim.errors import ConfigError
from g10sim.experiment.cells import CellTask
from g10sim.experiment.child import CellOrder, run_in_child, versions
from g10sim.experiment.cluster import DaskCluster
from g10sim.results.reading import read_results

if find_spec("distributed") is None:
    pytest.skip("needs Dask: pip install 'g10sim[distributed]'", allow_module_level=True)

# What Dask warns of is not ours.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

PLUGINS = "experiment.plugins"
TESTS = Path(__file__).parents[1]
G10SIM = Path(sys.executable).with_name("g10sim")


class Cluster:
    """A scheduler and workers, each a process with its nanny."""

    def __init__(self, workers):
        from distributed import LocalCluster

        self._cluster = LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
        )
        self.address = self._cluster.scheduler_address

    def processes(self):
        return [nanny.pid for nanny in self._cluster.workers.values()]

    def close(self):
        self._cluster.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    place = tmp_path_factory.mktemp("dask")
    before = Path.cwd()
    os.chdir(place)  # workers do not start where the sweep does
    try:
        cluster = Cluster(2)
    finally:
        os.chdir(before)
    yield cluster
    cluster.close()


def slow(log, seconds, tag, **more):
    return {"name": f"{PLUGINS}:Slow", "seconds": seconds, "log": str(log), "tag": tag, **more}


def test_a_cluster_gives_the_same_bytes_as_this_machine(config, cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    swept = {
        **config,
        "workload": {"trace": "chain.g10t"},
        "policies": [
            "base_uvm",
            *(f"{PLUGINS}:{name}" for name in ("Raises", "Killed", "Unsupported")),
            "deepum",
        ],
        "record": ["kernels", "migrations", "memory", "timeline"],
    }
    g10sim.run(swept, output="here")
    outcome = g10sim.run(swept, output="there", scheduler=cluster.address)
    assert sorted({row["status"] for row in outcome.rows}) == ["failed", "ok", "unsupported"]
    files = ("results.csv", "kernels.parquet", "migrations.parquet", "memory.parquet", "timeline/4.json.gz")
    for name in files:
        assert Path("here", name).read_bytes() == Path("there", name).read_bytes(), name
    workers = {result.timing["worker"] for result in outcome.results if result.status == "ok"}
    assert all(worker.startswith("tcp://127.0.0.1:") for worker in workers)
    again = g10sim.run(swept, output="there", scheduler=cluster.address)
    assert again.reused == 3
    assert not list(Path("there", "cells").glob(".*"))


def wait_for(condition, seconds=180):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def starts(log):
    """For each tag, the workers that began to plan its cell, in order."""
    found = defaultdict(list)
    if log.exists():
        for line in log.read_text().splitlines():
            _, tag, worker = line.split()
            found[tag].append(int(worker))
    return found


@pytest.mark.nightly
def test_a_worker_killed_in_the_middle_loses_nothing_and_repeats_nothing(config, cluster, tmp_path):
    log, tags = tmp_path / "log", [f"cell{number}" for number in range(5)]
    config["policies"] = [slow(log, 0.4, tag) for tag in tags]
    killed = cluster.processes()[0]

    def kill():
        # Its second cell has begun: its first one is finished and must not run again.
        wait_for(lambda: sum(found[-1] == killed for found in starts(log).values()) >= 2)
        os.kill(killed, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    outcome = g10sim.run(config, output=tmp_path / "there", scheduler=cluster.address)
    killer.join()
    assert [row["status"] for row in outcome.rows] == ["ok"] * 5
    begun = starts(log)
    assert sorted(begun) == tags
    (lost,) = [tag for tag, workers in begun.items() if len(workers) > 1]
    assert begun[lost][0] == killed
    assert len(begun[lost]) == 2
    on_killed = [tag for tag in tags if begun[tag] == [killed]]
    assert on_killed  # finished there before, and kept
    g10sim.run(config, output=tmp_path / "here")
    there, here = (tmp_path / name / "results.csv" for name in ("there", "here"))
    assert there.read_bytes() == here.read_bytes()


@pytest.mark.nightly
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_ended_on_a_cluster_is_continued_anywhere(config, cluster, tmp_path, monkeypatch, how):
    monkeypatch.chdir(tmp_path)
    log, gate = tmp_path / "log", tmp_path / "gate"
    gate.mkdir()
    free = [slow(log, 0.1, f"cell{number}") for number in range(3)]
    held = [slow(log, 0.1, f"held{number}", gate=str(gate)) for number in range(3)]
    config["policies"] = free + held
    (tmp_path / "run.yaml").write_text(json.dumps({**config, "output": "out"}))
    search_path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": search_path}
    command = [G10SIM, "run", "run.yaml"]
    running = subprocess.Popen(
        [*command, "--scheduler", cluster.address],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        # Listens to Ctrl-C also where tests run in the background of a shell, which switches it off.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    cells = tmp_path / "out" / "cells"
    wait_for(lambda: len(list(cells.glob("*.json"))) == 3 and (tmp_path / "out" / "results.csv").exists())
    wait_for(lambda: running_cells(cluster))
    running.send_signal(how)
    _, complaint = running.communicate(timeout=60)
    if how == signal.SIGINT:
        assert running.returncode == 130
        said = " of 6 cells are finished and kept; the same command runs the rest\n"
        assert complaint.endswith(said)
        assert complaint.count("\n") == 1
    wait_for(lambda: not running_cells(cluster))
    (gate / "open").touch()
    assert 1 <= len(read_results(tmp_path / "out")) <= 3
    resumed = g10sim.run("run.yaml")
    assert (resumed.reused, [row["status"] for row in resumed.rows]) == (3, ["ok"] * 6)
    g10sim.run("run.yaml", output="whole")
    assert Path("out", "results.csv").read_bytes() == Path("whole", "results.csv").read_bytes()


def running_cells(cluster):
    """Processes that simulate cells for the workers."""
    import psutil  # comes with Dask

    found = []
    for worker in cluster.processes():
        with suppress(psutil.NoSuchProcess):
            found += [child for child in psutil.Process(worker).children() if is_cell(child)]
    return found


def is_cell(process):
    import psutil

    try:
        return "g10sim.experiment.child" in process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


@pytest.fixture
def task(config, tmp_path):
    config["policies"] = [slow(tmp_path / "log", 0.0, "cell")]
    outcome = g10sim.run(config, output=tmp_path / "out")
    return CellTask(outcome.cells[0], tmp_path / "out")


def order(task, **changes):
    made = CellOrder(task, versions(), (str(TESTS),), str(Path.cwd()))
    return pickle.dumps(replace(made, **changes))


def test_a_finished_cell_that_is_asked_for_again_does_not_run_again(task, tmp_path):
    result = run_in_child(order(task), "a", lambda: True)
    assert result.status == "ok"
    assert result.timing["worker"] == 0
    assert len(starts(tmp_path / "log")["cell"]) == 1


def test_another_version_on_a_worker_is_refused(task):
    others = {**versions(), "numpy": "1.0"}
    result = run_in_child(order(task, versions=others), "a", lambda: True)
    assert result.status == "failed"
    assert "worker a has numpy" in result.message
    assert result.message.endswith("needed for the same results: 1.0")


def test_another_trace_on_a_worker_is_refused(task):
    cell = task.cell
    jobs = (replace(cell.jobs[0], trace=replace(cell.jobs[0].trace, sha256="0" * 64)),)
    other = CellTask(replace(cell, jobs=jobs, seed=1), task.directory)
    result = run_in_child(order(other), "a", lambda: True)
    assert result.status == "failed"
    assert "is not the trace that the run began with (sha256 000000000000)" in result.message


def test_a_cell_that_nobody_wants_any_more_is_ended(task, tmp_path):
    cell = task.cell
    policy = {**cell.policy, "seconds": 60.0, "tag": "unwanted"}
    begun = time.monotonic()
    result = run_in_child(
        order(CellTask(replace(cell, policy=policy), task.directory)),
        "a",
        lambda: "unwanted" not in starts(tmp_path / "log"),
    )
    assert "the run that wanted this cell has ended" in result.message
    assert time.monotonic() - begun < 30


def test_workers_that_do_not_see_the_directory_say_so(task, cluster):
    from distributed import Client

    from g10sim.experiment.cluster import _on_worker

    with Client(cluster.address, set_as_default=False) as client:
        result = client.submit(_on_worker, order(task), "/nowhere/cells/.running").result()
    assert "does not see /nowhere/cells; allowed: workers that share this directory" in result.message


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "no-address", "ftp://x:1"])
def test_a_scheduler_that_is_not_there(address, monkeypatch):
    monkeypatch.setattr("g10sim.experiment.cluster._SECONDS_TO_CONNECT", 1)
    with pytest.raises(ConfigError, match=f"scheduler {address}: found no Dask scheduler there"):
        DaskCluster(address)


def test_tls_without_certificates():
    said = "scheduler tls://127.0.0.1:1: found no certificates for TLS in Dask's configuration; allowed: "
    with pytest.raises(ConfigError, match=said):
        DaskCluster("tls://127.0.0.1:1")


def test_dask_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConfigError, match=r"needs Dask, .*pip install 'g10sim\[distributed\]'"):
        DaskCluster("tcp://127.0.0.1:1")
