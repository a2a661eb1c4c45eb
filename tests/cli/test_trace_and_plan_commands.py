"""``g10sim trace`` and ``g10sim plan`` as a user meets them."""

import json
import re
import sys

import pytest

from g10sim.cli.main import main
from g10sim.config.data import data_path
from g10sim.policies.interface.moves import Evict, Fetch
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.plan_format import save_plan
from g10sim.trace.format import load_trace, save_trace, trace_hash
from g10sim.trace.synthetic import chain


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a command in ``tmp_path``; returns (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def command(*arguments):
        monkeypatch.setattr("sys.argv", ["g10sim", *map(str, arguments)])
        monkeypatch.setattr("sys.path", list(sys.path))
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, *capsys.readouterr()

    return command


@pytest.fixture
def trace(tmp_path):
    found = chain(4, activation_bytes=1 << 30, weight_bytes=1 << 20)
    save_trace(found, tmp_path / "chain.g10t")
    return found


def refused(result):
    """The one line on standard error of a command that ended with exit code 2."""
    code, output, errors = result
    assert code == 2
    assert output == ""
    assert errors.count("\n") == 1
    return errors.removeprefix("error: ").rstrip("\n")


def test_check(run, trace):
    code, output, errors = run("trace", "check", "chain.g10t")
    assert (code, errors) == (0, "")
    assert output == (
        "chain.g10t: good; chain4, batch size 1: 12 kernels, 18 tensors, footprint 10.0 GiB; "
        f"sha256 {trace_hash(trace)}\n"
    )


def test_check_of_a_changed_file(run, trace, tmp_path):
    path = tmp_path / "chain.g10t"
    path.write_bytes(path.read_bytes()[:-30])
    message = refused(run("trace", "check", "chain.g10t"))
    assert message.startswith("chain.g10t: after line ")
    assert message.endswith("; allowed: a whole gzip file")


@pytest.mark.usefixtures("trace")
def test_info(run):
    code, output, errors = run(
        "trace", "info", "chain.g10t", "--gpu-memory", "3584 MiB", "--gpu-memory", "4 GB"
    )
    assert (code, errors) == (0, "")
    rows = info_rows(output)
    table = {row[0]: row[1:] for row in rows}
    assert table["footprint (all tensors)"] == ["10.0 GiB"]
    assert table["most alive at a time"] == ["7.00 GiB (at kernel 4, Backward, backward of layer3)"]
    assert table["in PyTorch's caching pool"] == ["at most 7.01 GiB"]
    assert table["kernels"] == ["12 (4 forward, 4 backward, 4 optimizer)"]
    assert table["compute time"] == ["12.4 ms"]
    assert table["activation"] == ["4", "4.00 GiB", "1.00 GiB"]
    assert ["3.5 GiB", "2.86", "2.00", "7.01 GiB", "largest takes 1.14 of it"] in rows


@pytest.mark.usefixtures("trace")
def test_info_as_json(run):
    found = json.loads(run("trace", "info", "chain.g10t", "--gpu-memory", "4 GB", "--json")[1])
    assert found["kernels"] == {"forward": 4, "backward": 4, "optimizer": 4}
    assert found["footprint_bytes"] == sum(tensor.size_bytes for tensor in load_trace("chain.g10t").tensors)
    assert found["most_alive"]["kernel"] == 4
    assert found["tensors"]["activation"] == {"tensors": 4, "bytes": 4 * 2**30, "largest_bytes": 2**30}
    (priced,) = found["kernel_times"]
    assert (priced["kernels"], priced["duration"] / found["ticks_per_second"]) == (12, 0.0124)
    assert found["systems"][0]["gpu_memory_bytes"] == 4 * 10**9


def info_rows(output):
    return [re.split(r"\s{2,}", line.strip(" │").replace("│", "  ")) for line in output.splitlines()]


@pytest.mark.usefixtures("trace")
def test_info_of_a_trace_that_tells_little(run):
    rows = info_rows(run("trace", "info", "chain.g10t", "--gpu-memory", "4 GB")[1])
    assert ["throughput", "80.6 samples/s"] in rows  # 12.4 ms
    assert ["not told", "synthetic", "12", "12.4 ms", "100.0%", "-", "-"] in rows
    assert not {"parameters", "FLOPs of the model", "model FLOPs utilisation"} & {row[0] for row in rows}


def test_info_of_a_captured_trace(run):
    bert = data_path("traces", "bert-base-b256-s128.g10t")
    rows = info_rows(run("trace", "info", bert, "--gpu-memory", "40 GiB")[1])
    table = {row[0]: row[1] for row in rows if len(row) > 1}
    assert table["formats"] == "dtype float32"
    assert table["parameters"] == "109,514,298"
    assert table["bytes a parameter"] == "4.00 weights, 4.00 gradients, 8.00 optimizer, together 16.00"
    found = load_trace(bert)
    seconds = sum(kernel.duration for kernel in found.kernels) / found.ticks_per_second
    flops = sum(kernel.flops for kernel in found.kernels)
    assert table["throughput"] == f"{256 / seconds:,.1f} samples/s, {256 * 128 / seconds:,.1f} tokens/s"
    assert table["FLOPs of the model"] == f"{flops / 1e12:,.2f} TFLOP"
    assert table["model FLOPs utilisation"] == f"{flops / 19.5e12 / seconds:.1%} of a100-40g's peak"
    assert ["matmul", "roofline", "222"] in [row[:3] for row in rows]


@pytest.mark.usefixtures("trace")
def test_info_compares_with_presets(run):
    code, output, _ = run("trace", "info", "chain.g10t")
    assert code == 0
    assert "a100-40g-pcie3-znand" in output
    code, output, _ = run("trace", "info", "chain.g10t", "--system", "v100-16g-pcie3-optane")
    assert "v100-16g-pcie3-optane" in output
    assert "a100-40g-pcie3-znand" not in output


@pytest.mark.usefixtures("trace")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu-memory", "40"], "--gpu-memory: found '40' without a unit; allowed: a size with a unit"),
        (["--gpu-memory", "0 GiB"], "--gpu-memory: found '0 GiB'; allowed: more than zero"),
        (["--system", "a100-40g-pcie3-zand"], "a100-40g-pcie3-znand"),
    ],
)
def test_bad_options(run, arguments, message):
    assert message in refused(run("trace", "info", "chain.g10t", *arguments))


def test_missing_file(run):
    message = refused(run("trace", "info", "bert-base-b256-s129"))
    assert message == (
        "found 'bert-base-b256-s129', which is no file in the working directory or the bundled data "
        "(did you mean 'traces/bert-base-b256-s128.g10t'?); allowed: an existing file"
    )


def test_bundled_trace_is_found_from_anywhere(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output, _ = run("trace", "info", "traces/bert-base-b256-s128.g10t")
    assert code == 0
    assert "bert-base-uncased, batch size 256" in output


def test_import(run, tmp_path):
    directory = tmp_path / "Model" / "4"
    directory.mkdir(parents=True)
    line = "tensor0 Is weight (global)?: 0, Size in byte: 4096, Range:0--4096\n"
    (directory / "tensors.config").write_text(line)
    (directory / "kernels.config").write_text(
        "Kernel ID: 0, Name: Add_Forward\nParent OP ID:1; Name: Add\nExecution Time: 12\n"
        f"Input Tensors:\nOutput Tensors:\n{line}{'_' * 20}\n"
    )
    code, output, errors = run("trace", "import", "gpg", "Model/4", "--model", "Mine", "-o", "out.g10t")
    assert (code, errors) == (0, "")
    assert output == "out.g10t: Mine, batch size 4: 1 kernels, 1 tensors, footprint 4.00 KiB\n"
    assert load_trace(tmp_path / "out.g10t").kernels[0].duration == 12
    message = refused(run("trace", "import", "gpg", "Model/4", "-o", "none/out.g10t"))
    assert message == "none/out.g10t: cannot be written: No such file or directory; allowed: a writable path"
    message = refused(run("trace", "import", "gpg", "Model", "-o", "x.g10t"))
    assert message.startswith("Model: found no batch size in the directory's name; allowed: ")
    assert not (tmp_path / "x.g10t").exists()


FIRST = MigrationPlan((Planned(0, Fetch(5)), Planned(3, Evict(5, "ssd"))), "by hand")
SECOND = MigrationPlan((Planned(1, Fetch(5)), Planned(3, Evict(17))))


@pytest.fixture
def plans(tmp_path, trace):
    save_plan(FIRST, tmp_path / "a.g10p", trace)
    save_plan(SECOND, tmp_path / "b.g10p")


def table_rows(output):
    return [re.split(r"\s{2,}", line.strip()) for line in output.splitlines()]


@pytest.mark.usefixtures("plans")
def test_plan_show(run):
    code, output, errors = run("plan", "show", "a.g10p", "--trace", "chain.g10t")
    assert (code, errors) == (0, "")
    assert output.startswith("a.g10p: 2 moves, planned by by hand\n")
    rows = table_rows(output)
    assert ["fetch", "1", "1", "1.00 GiB"] in rows
    assert ["evict to host", "0", "0", "0 B"] in rows
    assert ["3", "5", "evict to ssd", "layer0.output", "1.00 GiB"] in rows
    assert ["3", "5", "evict to ssd"] not in table_rows(run("plan", "show", "a.g10p", "--moves", "1")[1])


@pytest.mark.usefixtures("plans")
def test_plan_diff(run):
    code, output, errors = run("plan", "diff", "a.g10p", "b.g10p")
    assert (code, errors) == (0, "")
    rows = table_rows(output)
    assert ["at other kernels", "1", "0", "0", "0"] in rows
    assert ["only in first", "0", "0", "1", "0"] in rows
    assert ["only in second", "0", "1", "0", "0"] in rows
    assert ["0", "1", "5", "fetch"] in rows
    assert ["3", "-", "5", "evict to ssd"] in rows
    assert ["-", "3", "17", "evict to host"] in rows
    assert "1.00 GiB" in run("plan", "diff", "a.g10p", "b.g10p", "--trace", "chain.g10t")[1]
    assert "The plans have the same moves." in run("plan", "diff", "a.g10p", "a.g10p")[1]


@pytest.mark.usefixtures("plans")
def test_plan_that_does_not_fit(run, tmp_path):
    save_trace(chain(1), tmp_path / "small.g10t")
    message = refused(run("plan", "show", "b.g10p", "--trace", "small.g10t"))
    assert message == "b.g10p: line 3: found unknown tensor 17; allowed: 0 to 5 (the trace has 6 tensors)"
