import csv
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from g10sim.policies.interface.moves import Fetch
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.plan_format import save_plan
from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain

G10SIM = Path(sys.executable).with_name("g10sim")


def interruptible():
    """Listen to Ctrl-C, also where tests run in the background of a shell, which switches it off."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def rows(path="out/results.csv"):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def refused(ended, *words):
    """One clear line, exit code 2, nothing written."""
    assert ended.code == 2
    assert ended.err.count("\n") == 1
    assert ended.err.startswith("error: ")
    assert "Traceback" not in ended.err
    for word in words:
        assert word in ended.err
    assert not Path("out").exists()


def failed(ended, *words):
    """One clear line for the cell that failed, exit code 1, whole results."""
    assert ended.code == 1
    assert ended.err.count("\n") == 1
    assert ended.err.startswith("error: cell ")
    for word in words:
        assert word in ended.err
    statuses = {row["policy"]: (row["status"], row["message"]) for row in rows()}
    assert statuses["ideal"] == ("ok", "")
    (status,) = [status for status, _ in statuses.values() if status != "ok"]
    assert status == "failed"
    assert not list(Path("out").rglob("*.tmp"))


STEADY = "system.gpu.memory=8 MiB"
"""GPU memory in which every policy repeats its iterations."""


def test_a_run_ends_with_a_table_and_results(g10sim, config):
    ended = g10sim("run", config(), "--set", STEADY)
    assert ended.code == 0
    assert ended.err == ""
    for word in ("Ideal", "Base UVM", "DeepUM+", "100.0%", "3 cells; results in out/results.csv"):
        assert word in ended.out
    assert [row["policy"] for row in rows()] == ["ideal", "base_uvm", "deepum"]
    again = g10sim("run", config(), "--set", STEADY)
    assert "3 cells, 3 of them from an earlier run" in again.out
    assert "earlier run" not in g10sim("run", config(), "--set", STEADY, "--force").out


def test_what_is_read_and_reused_is_told_on_demand(g10sim, config):
    name = config(policies=["ideal"])
    first = g10sim("run", name, "-v").err.splitlines()
    assert first[0] == f"reads {name}"
    assert first[-1].endswith("chain.g10t")
    assert not any("cell" in line for line in first)
    again = g10sim("run", name, "-v").err.splitlines()
    assert again[:-1] == [first[0], first[-1]]  # the preset is known in this process
    assert again[-1] == "cell 0 is reused: chain.g10t, ideal"
    assert g10sim("run", name).err == ""


def test_names_in_tables_do_not_break(g10sim, config, monkeypatch):
    monkeypatch.setattr("g10sim.cli.output._PIPED_WIDTH", 80)
    wordy = {"name": "vdnn_multi", "ladder": "K1", "prefetch": "planned", "layer_end_join": False}
    out = g10sim(
        "run", config(policies=["ideal", "vdnn_multi", wordy], sweep={"system.host.memory": ["16 GiB"]})
    ).out
    table = out[: out.index("cells; results in")].splitlines()[:-1]
    assert all(len(line) <= 80 for line in table)
    assert {"multi-GPU(ladder=K1,", "prefetch=planned,", "layer_end_join=False),"} <= set(
        " ".join(table).split()
    )


def test_options(g10sim, config):
    command = ("run", config(), "-o", "there", "-j", "2", "--check", "--set", "policies=[ideal, base_uvm]")
    ended = g10sim(*command, "--set", "system.host.memory=16 MiB")
    assert ended.code == 0
    found = rows("there/results.csv")
    assert [row["policy"] for row in found] == ["ideal", "base_uvm"]
    assert int(found[1]["gpu_to_ssd_bytes"]) == 0
    assert not Path("out").exists()


def test_the_table_of_means_says_why_a_cell_is_unsupported(g10sim, config):
    system = {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "1 MiB"}}
    ended = g10sim("run", config(system=system, policies=["ideal", "base_uvm"], seed=[0, 1]))
    assert ended.code == 0
    (line,) = [line for line in ended.out.splitlines() if "unsupported" in line]
    assert "kernel" in line


@pytest.mark.slow
def test_several_seeds_give_a_row_each_and_a_table_of_means(g10sim, config):
    workload = {"trace": "chain.g10t", "variation": {"distribution": "uniform", "magnitude": 0.1}}
    name = config(workload=workload, seed=[0, 1, 2])
    ended = g10sim("run", name)
    assert ended.code == 0
    assert "mean of 3 seeds, ± 95% confidence interval" in ended.out
    found = rows()
    assert [(row["policy"], row["seed"]) for row in found] == [
        (policy, seed) for policy in ("ideal", "base_uvm", "deepum") for seed in "012"
    ]
    for seed in range(3):
        assert len({row["ideal_cycles"] for row in found[seed::3]}) == 1
    assert len({row["ideal_cycles"] for row in found}) == 3
    mean = sum(float(row["exec_ms"]) for row in found[3:6]) / 3
    (line,) = [line for line in ended.out.splitlines() if line.startswith("Base UVM")]
    assert f" {mean:,.1f} ± " in line
    again = g10sim("run", "out/config.yaml", "-o", "again", "--set", "policies=[base_uvm]")
    assert "mean of 3 seeds" in again.out
    assert [row["exec_cycles"] for row in rows("again/results.csv")] == [
        row["exec_cycles"] for row in found[3:6]
    ]
    assert "mean" not in g10sim("run", name, "--set", "seed=1").out


@pytest.mark.slow
def test_runs_and_numbers_of_workers_give_the_same_bytes(g10sim, config):
    name = config(sweep={"system.host.memory": ["0 B", "4 MiB", "16 MiB"]})
    for directory, workers in (("a", 1), ("b", 1), ("c", 2)):
        assert g10sim("run", name, "-o", directory, "-j", workers).code == 0
    assert Path("a/results.csv").read_bytes() == Path("b/results.csv").read_bytes()
    assert Path("a/results.csv").read_bytes() == Path("c/results.csv").read_bytes()


@pytest.mark.slow
def test_the_module_runs_as_the_command_does(config, here, g10sim):
    name = config(policies=["ideal", "base_uvm"])
    command = [sys.executable, "-m", "g10sim", "run", name, "-j", "2"]
    ended = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert (ended.returncode, len(rows())) == (0, 2)
    assert g10sim("run", name, "-o", "there").code == 0
    assert rows() == rows("there/results.csv")


def test_the_quickstart_runs_from_anywhere(g10sim):
    ended = g10sim("run", "configs/quickstart.yaml", "-o", "out", "--set", "policies=[ideal]")
    assert ended.code == 0
    assert {row["performance"] for row in rows()} == {"1.0"}


def test_the_schema_of_configurations(g10sim):
    ended = g10sim("run", "--schema")
    assert ended.code == 0
    assert "policies" in json.loads(ended.out)["properties"]


def test_an_unsupported_policy_is_a_result(g10sim, config, here):
    (here / "small_gpu.py").write_text(
        "from g10sim.errors import UnsupportedError\n"
        "from g10sim.policies.interface import Policy\n"
        "class SmallGpu(Policy):\n"
        "    name = 'small_gpu'\n"
        "    def plan_job(self, job, system, behaviour):\n"
        "        raise UnsupportedError('needs more')\n"
    )
    ended = g10sim("run", config(policies=["ideal", "small_gpu:SmallGpu"]))
    assert ended.code == 0
    assert [row["status"] for row in rows()] == ["ok", "unsupported"]
    assert "unsupported" in ended.out


class TestBadInput:
    def test_unknown_key(self, g10sim, config):
        refused(g10sim("run", config(polices=["ideal"])), "run.yaml:", "polices", "did you mean 'policies'?")

    def test_missing_key(self, g10sim, here):
        (here / "run.yaml").write_text("policies: [ideal]\nsystem: a100-40g-pcie3-znand\n")
        refused(g10sim("run", "run.yaml"), "run.yaml", "workload", "missing")

    def test_unknown_distribution(self, g10sim, config):
        workload = {"trace": "chain.g10t", "variation": {"distribution": "gauss", "magnitude": 0.1}}
        ended = g10sim("run", config(workload=workload))
        refused(ended, "run.yaml:5: workload.variation.distribution: found 'gauss'; allowed: normal, uniform")

    def test_missing_unit(self, g10sim, config):
        system = {"preset": "a100-40g-pcie3-znand", "host": {"memory": 64}}
        ended = g10sim("run", config(system=system))
        refused(ended, "run.yaml:7: system.host.memory: found 64 without a unit; allowed: a size with a unit")

    def test_negative_size(self, g10sim, config):
        ended = g10sim("run", config(), "--set", "system.gpu.memory=-1 GiB")
        refused(
            ended, "--set system.gpu.memory=-1 GiB: system.gpu.memory: found negative '-1 GiB'; allowed: "
        )

    def test_unknown_policy(self, g10sim, config):
        ended = g10sim("run", config(policies=["ideal", "base_uvn"]))
        refused(ended, "run.yaml:", "policies.1", "unknown policy 'base_uvn' (did you mean 'base_uvm'?)")

    def test_unknown_policy_parameter(self, g10sim, config):
        ended = g10sim("run", config(policies=[{"name": "deepum", "lookahead": 3}]))
        refused(ended, "policies.0.lookahead", "did you mean 'look_ahead'?", "order_file")

    def test_unknown_system(self, g10sim, config):
        refused(
            g10sim("run", config(system="a100-40g")), "run.yaml:4: system: found unknown system 'a100-40g'"
        )

    def test_missing_trace(self, g10sim, config):
        ended = g10sim("run", config(workload={"trace": "none.g10t"}))
        refused(ended, "run.yaml:3: workload.trace.0: found 'none.g10t', which is no file")

    def test_truncated_trace(self, g10sim, config, here):
        name = config()
        trace = here / "chain.g10t"
        trace.write_bytes(trace.read_bytes()[:-200])
        refused(g10sim("run", name), "chain.g10t", "allowed: ")

    def test_trace_with_a_tensor_used_before_it_exists(self, g10sim, config, here):
        name = config()
        trace = here / "chain.g10t"
        lines = gzip.decompress(trace.read_bytes()).decode().splitlines()
        kernels = [number for number, line in enumerate(lines) if '"kernel"' in line and "Forward" in line]
        first, second = (json.loads(lines[number]) for number in kernels[:2])
        first["inputs"].append(second["outputs"][0])
        lines[kernels[0]] = json.dumps(first)
        trace.write_text("\n".join(lines) + "\n")
        refused(g10sim("run", name), f"chain.g10t: line {kernels[0] + 1}", "before")

    def test_working_set_larger_than_gpu_memory(self, g10sim, config):
        system = {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "2 MiB"}}
        ended = g10sim("run", config(system=system, policies=["ideal", "base_uvm"]))
        assert (ended.code, ended.err) == (0, "")
        (ideal, uvm) = rows()
        assert (ideal["status"], uvm["status"]) == ("ok", "unsupported")
        assert "has a working set of" in uvm["message"]
        assert "allowed: at most the GPU memory, 2 MiB" in uvm["message"]

    @pytest.mark.slow
    def test_plan_naming_an_unknown_tensor(self, g10sim, config, here):
        save_plan(MigrationPlan((Planned(1, Fetch(4711)),)), here / "bad.g10p")
        ended = g10sim("run", config(policies=["ideal", {"name": "replay", "plan_file": "bad.g10p"}]))
        failed(ended, "bad.g10p", "4711", "allowed: ")

    @pytest.mark.parametrize("output", ["chain.g10t/out", "/proc/none/out"])
    def test_unwritable_output(self, g10sim, config, output):
        ended = g10sim("run", config(), "-o", output)
        refused(ended, f"output {output}: cannot be written", "allowed: a writable directory")

    def test_plugin_that_raises(self, g10sim, config, here):
        (here / "raising.py").write_text(
            "from g10sim.policies.interface import Policy\n"
            "class Raising(Policy):\n"
            "    name = 'raising'\n"
            "    def on_kernel_start(self, view):\n"
            "        raise KeyError('lost')\n"
        )
        failed(g10sim("run", config(policies=["ideal", "raising:Raising"])), "raising", "KeyError", "lost")

    def test_debug_shows_the_whole_traceback_once(self, g10sim, config, here):
        (here / "broken.py").write_text(
            "from g10sim.policies.interface import Policy\n\n\nclass Broken(Policy):\n    name = 'broken'\n\n"
            "    def on_kernel_start(self, view):\n        return helper()\n\n\n"
            "def helper():\n    return [][1]\n"
        )
        name = config(policies=["broken:Broken"], sweep={"system.host.memory": ["0 B", "4 MiB"]})
        plain, ended = g10sim("run", name), g10sim("run", name, "--debug")
        assert (plain.code, ended.code) == (1, 1)
        assert "Traceback" not in plain.err
        assert ended.err.count("IndexError: list index out of range\n") == 1
        assert f'File "{here}/broken.py", line 12, in helper' in ended.err
        assert ended.err.splitlines()[-1].startswith("error: cell 0 (chain.g10t, broken:Broken)")

    @pytest.mark.slow
    def test_cells_that_take_too_long_are_given_up(self, g10sim, config, here):
        (here / "endless.py").write_text(
            "import time\nfrom g10sim.policies.interface import Policy\n\n\n"
            "class Endless(Policy):\n    name = 'endless'\n\n"
            "    def on_kernel_start(self, view):\n        time.sleep(600)\n"
        )
        assert g10sim("run", config(policies=["ideal"])).code == 0  # workers have started before time counts
        ended = g10sim("run", config(policies=["ideal", "endless:Endless", "deepum"]), "--seconds", "4")
        failed(ended, "endless", "took longer than 4 s, the limit of --seconds")
        assert [row["status"] for row in rows()] == ["ok", "failed", "ok"]

    @pytest.mark.slow
    def test_time_in_methods_of_the_policy_is_told(self, g10sim, config, here):
        (here / "slow.py").write_text(
            "import time\nfrom g10sim.policies.designs.base_uvm import BaseUvm\n\n\n"
            "class Slow(BaseUvm):\n    name = 'slow'\n\n"
            "    def plan(self, workload, system, behaviour):\n        time.sleep(0.3)\n"
            "        return super().plan(workload, system, behaviour)\n"
        )
        assert g10sim("run", config(policies=["base_uvm", "slow:Slow"])).code == 0
        with Path("out/timing.csv").open(newline="") as file:
            usual, slow = csv.DictReader(file)
        assert float(slow["wall_seconds"]) >= float(slow["policy_seconds"]) >= 0.3
        assert float(usual["policy_seconds"]) < float(usual["wall_seconds"])
        # Planning counts, without the time that it sleeps; kernel by kernel nothing does.
        assert 0 < float(slow["planning_cpu_seconds"]) < 0.3

    def test_plugin_that_cannot_be_loaded(self, g10sim, config, here):
        (here / "unloadable.py").write_text("import nothing_like_it\n")
        ended = g10sim("run", config(policies=["unloadable:Some"]))
        refused(ended, "policies.0", "unloadable:Some", "nothing_like_it")

    @pytest.mark.slow
    def test_plugin_that_evicts_data_of_the_running_kernel(self, g10sim, config, here):
        (here / "evicting.py").write_text(
            "from g10sim.policies.interface import Policy\n"
            "from g10sim.policies.interface.moves import Evict\n"
            "class Evicting(Policy):\n"
            "    name = 'evicting'\n"
            "    def on_kernel_start(self, view):\n"
            "        return [Evict(view.trace.kernels[view.kernel].inputs[0])] if view.kernel else []\n"
        )
        ended = g10sim("run", config(policies=["ideal", "evicting:Evicting"]))
        failed(ended, "policy 'evicting'", "kernel 1", "tensor")

    def test_damaged_yaml(self, g10sim, here):
        (here / "run.yaml").write_text("name: [1\n")
        refused(g10sim("run", "run.yaml"), "run.yaml:", "allowed: valid YAML")

    def test_no_configuration(self, g10sim):
        refused(g10sim("run"), "found no configuration")
        refused(
            g10sim("run", "none.yaml"), "found 'none.yaml', which is no file", "allowed: an existing file"
        )

    def test_bad_options(self, g10sim, config):
        refused(g10sim("run", config(), "--sett", "seed=1"), "--sett")
        refused(g10sim("run", config(), "-o", ""), "'-o' / '--output': found an empty path")
        assert not Path("results.csv").exists()
        refused(g10sim("run", config(), "-j", "0"), "-j")
        refused(g10sim("run", config(), "--scheduler", "x", "-j", "2"), "-j", "--scheduler", "one of them")


SLOW = """\
import time
from pathlib import Path
from g10sim.policies.interface import Policy
class Slow(Policy):
    name = "slow"
    def plan_job(self, job, system, behaviour):
        while len(list(Path("killed/cells").glob("*.json"))) >= 3 and not Path("gate").exists():
            time.sleep(0.01)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code"),
    [(signal.SIGKILL, -signal.SIGKILL), pytest.param(signal.SIGINT, 130, marks=pytest.mark.nightly)],
)
def test_a_run_ended_in_the_middle_resumes_and_ends_with_the_same_results(config, here, g10sim, how, code):
    (here / "slow.py").write_text(SLOW)
    name = config(policies=["slow:Slow", "base_uvm"], sweep={"seed": [0, 1, 2, 3]})
    killed = subprocess.Popen([G10SIM, "run", name, "-o", "killed"], cwd=here, preexec_fn=interruptible)
    cells = here / "killed" / "cells"
    deadline = time.monotonic() + 60
    while len(list(cells.glob("*.json"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(how)
    assert killed.wait() == code
    assert 1 <= len(rows(here / "killed" / "results.csv")) < 8
    stored = {path: path.stat().st_mtime_ns for path in cells.glob("*.json")}
    assert 3 <= len(stored) < 8
    (here / "gate").touch()
    resumed = g10sim("run", name, "-o", "killed")
    assert resumed.code == 0
    assert " of them from an earlier run" in resumed.out
    assert all(path.stat().st_mtime_ns == changed for path, changed in stored.items())
    assert g10sim("run", name, "-o", "whole", "-j", "2").code == 0
    assert Path("killed/results.csv").read_bytes() == Path("whole/results.csv").read_bytes()


WAITS = """\
import os, time
from pathlib import Path
from g10sim.policies.interface import Policy
class Waits(Policy):
    name = "waits"
    def plan_job(self, job, system, behaviour):
        Path("pid.tmp").write_text(str(os.getpid()))
        Path("pid.tmp").rename("pid")
        time.sleep(60)
"""


@pytest.mark.slow
def test_no_cell_outlives_a_run_that_is_killed(config, here):
    (here / "waits.py").write_text(WAITS)
    killed = subprocess.Popen([G10SIM, "run", config(policies=["waits:Waits"])], cwd=here)
    wait_for((here / "pid").exists)
    worker = int((here / "pid").read_text())
    assert is_running(worker)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    wait_for(lambda: not is_running(worker))


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(process):
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False


@pytest.mark.slow
def test_an_interrupted_run_keeps_finished_cells(config, here):
    (here / "slow.py").write_text(SLOW.replace(">= 3", ">= 0"))
    name = config(policies=["ideal", "slow:Slow"])
    command = [G10SIM, "run", name]
    running = subprocess.Popen(command, cwd=here, stderr=subprocess.PIPE, text=True, preexec_fn=interruptible)
    cells = here / "out" / "cells"
    deadline = time.monotonic() + 60
    while not list(cells.glob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=20)
    assert running.returncode == 130
    said = r"error: interrupted; [01] of 2 cells are finished and kept; the same command runs the rest\n"
    assert re.fullmatch(said, err)
    assert len(list(cells.glob("*.json"))) == 1


def test_a_run_that_is_interrupted_before_its_cells_tells_of_none(g10sim, config, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("g10sim.cli.run.run_experiment", interrupt)
    done = g10sim("run", config(policies=["ideal"]))
    assert (done.code, done.err) == (130, "error: interrupted\n")


@pytest.mark.slow
def test_simulating_imports_no_torch_and_no_matplotlib(here):
    save_trace(chain(2), here / "chain.g10t")
    program = (
        "import sys, g10sim, g10sim.cli.main\n"
        "g10sim.simulate('chain.g10t', 'a100-40g-pcie3-znand', 'base_uvm')\n"
        "sys.exit(bool({'torch', 'matplotlib'} & set(sys.modules)))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=here, env=dict(os.environ)).returncode == 0


@pytest.mark.slow
def test_a_run_with_nothing_to_do_imports_no_pandas(g10sim, config, here):
    name = config(policies=["ideal"])
    assert g10sim("run", name).code == 0
    program = (
        "import sys\nfrom g10sim.cli.main import main\n"
        f"sys.argv = ['g10sim', 'run', {str(name)!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "sys.exit('pandas' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=here, env=dict(os.environ)).returncode == 0


def test_the_table_says_what_is_not_steady(g10sim, config):
    assert "steady" not in g10sim("run", config(), "--set", STEADY).out
    ended = g10sim("run", config(workload={"trace": "chain.g10t", "iterations": 2}))
    assert [row["steady"] for row in rows()] == ["True", "False", "False"]
    header = next(line for line in ended.out.splitlines() if "policy" in line)
    assert "steady" in header
    found = {name: line for line in ended.out.splitlines() for name in ("Ideal", "Base UVM") if name in line}
    assert "yes" in found["Ideal"]
    assert "no" in found["Base UVM"].split()
    seeds = config(
        workload={"trace": "chain.g10t", "iterations": 2, "variation": {"magnitude": 0.1}}, seed=[0, 1]
    )
    averaged = g10sim("run", seeds).out
    assert "mean of 2 seeds" in averaged
    assert [line.split()[-1] for line in averaged.splitlines() if "Base UVM" in line]
    assert "no" in next(line for line in averaged.splitlines() if "Base UVM" in line).split()
