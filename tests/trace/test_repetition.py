"""A trace whose blocks repeat is the trace that has them written out, in every respect but its size."""

import gzip
import json
import pickle
from dataclasses import fields, replace

import pytest

from g10sim.analysis.footprint import live_bytes_by_kind, working_set_bytes, working_set_bytes_by_kind
from g10sim.analysis.vitality import inactive_periods, live_ranges
from g10sim.config.presets import load_system
from g10sim.config.sharing import VariationSpec
from g10sim.errors import TraceError
from g10sim.experiment.cells import make_policy
from g10sim.sim.engine import run
from g10sim.trace.check import problems
from g10sim.trace.format import load_trace, save_trace, trace_hash
from g10sim.trace.model import Device, FaultProfile, Kernel, Phase, TensorKind, TimeSource, Trace
from g10sim.trace.repetition import Repeated
from g10sim.trace.synthetic import TraceBuilder, chain, decode
from g10sim.trace.workload import Job, Workload, perturb


def written_out(trace: Trace) -> Trace:
    """The same trace with every tensor and every kernel in memory."""
    return replace(trace, tensors=tuple(trace.tensors), kernels=tuple(trace.kernels))


@pytest.fixture
def trace():
    """Two layers, three steps, and a kernel before and after them."""
    builder = TraceBuilder("steps")
    weight = builder.tensor("weight", 4096, TensorKind.WEIGHT, persistent=True)
    first = builder.tensor("prompt", 100, TensorKind.INPUT)
    state = builder.tensor("state", 200, TensorKind.ACTIVATION)
    builder.kernel("Begin", 5, [first], [state])
    hidden = builder.tensor("hidden", 300, TensorKind.ACTIVATION)
    after = builder.tensor("state", 200, TensorKind.ACTIVATION)
    builder.kernel("Up", 10, [state, weight], [hidden])
    builder.kernel("Down", 20, [hidden], [after, weight])
    builder.repeat(2, 3, since=state, tensors=2)
    builder.kernel("End", 7, [state + 2 * 3], [])
    return builder.build()


def test_items_are_made_with_their_own_tensors(trace):
    assert [kernel.name for kernel in trace.kernels] == ["Begin", *["Up", "Down"] * 3, "End"]
    assert [kernel.id for kernel in trace.kernels] == list(range(8))
    # Every step reads the state that the one before it left: tensors 2, 4 and 6.
    assert [kernel.inputs for kernel in trace.kernels] == [
        (1,),
        (2, 0),
        (3,),
        (4, 0),
        (5,),
        (6, 0),
        (7,),
        (8,),
    ]
    assert [kernel.outputs for kernel in trace.kernels[1:7]] == [(3,), (4, 0), (5,), (6, 0), (7,), (8, 0)]
    assert [tensor.id for tensor in trace.tensors] == list(range(9))
    assert [tensor.name for tensor in trace.tensors[5:]] == ["hidden", "state"] * 2
    assert trace.kernels[-1] == trace.kernels[7]
    with pytest.raises(IndexError, match="found index 8; allowed: less than 8"):
        trace.kernels[8]


def test_a_kernel_with_other_tensors_keeps_all_else():
    kernel = Kernel(
        id=1,
        name="Full",
        duration=4,
        inputs=(1, 0),
        outputs=(2,),
        phase=Phase.OPTIMIZER,
        layer="a.b",
        layer_type="Linear",
        flops=10**15,
        moved_bytes=3,
        time_source=TimeSource.ROOFLINE,
        fault_profile=FaultProfile(5, 7),
        operator_class="matmul",
        reads=(2, 3),
        device=Device.CPU,
        parameters=9,
        micro_batch=2,
        number_format="float16",
        sizes=(("groups", 2),),
    )
    defaults = Kernel(0, "", 0, (), ())
    assert all(getattr(kernel, one.name) != getattr(defaults, one.name) for one in fields(Kernel) if one.init)
    assert kernel.again(31, since=1, shift=10) == replace(kernel, id=31, inputs=(11, 0), outputs=(12,))


def test_facts_are_those_of_the_trace_written_out(trace):
    other = written_out(trace)
    assert trace == other
    assert trace != replace(other, kernels=other.kernels[:-1])
    for ours, theirs in ((trace, other), (trace.in_order_of_use, other.in_order_of_use)):
        assert (ours.uses, ours.births, ours.deaths) == (theirs.uses, theirs.births, theirs.deaths)
        assert ours.durations_cycles(10**9) == theirs.durations_cycles(10**9)
        assert ours.page_sizes(128) == theirs.page_sizes(128)
        assert live_ranges(ours) == live_ranges(theirs)
        assert inactive_periods(ours) == inactive_periods(theirs)
        assert list(working_set_bytes(ours)) == list(working_set_bytes(theirs))
        for of in (live_bytes_by_kind, working_set_bytes_by_kind):
            assert {kind: list(found) for kind, found in of(ours).items()} == {
                kind: list(found) for kind, found in of(theirs).items()
            }
        assert ours == theirs
        assert ours.display() == theirs.display()
        assert ours.cpu_kernels == ()


def test_numbering_by_use_can_be_undone(trace):
    numbered = trace.in_order_of_use
    assert [kernel.inputs for kernel in numbered.kernels[:3]] == [(0,), (1, 2), (3,)]
    assert numbered.as_given == trace
    assert trace_hash(numbered.as_given) == trace_hash(trace)
    assert isinstance(numbered.as_given.kernels, Repeated)
    assert numbered.in_order_of_use is numbered


def test_kernel_times_vary_alike(trace):
    variation = VariationSpec(magnitude=0.3, distribution="uniform")
    assert perturb(trace, variation, 5) == perturb(written_out(trace), variation, 5)


def test_pickled(trace):
    assert pickle.loads(pickle.dumps(trace.in_order_of_use)) == trace.in_order_of_use


@pytest.mark.parametrize("policy", ["ideal", "base_uvm", "deepum", "g10", "g10_gds", "pressure", "in_place"])
@pytest.mark.slow
def test_simulations_are_equal(policy):
    trace = decode(4, layers=6, weight_bytes=6 << 20, cache_bytes=4 << 20, activation_bytes=1 << 20)
    host = {"kernel_access": {}} if policy == "in_place" else {}
    system = load_system({"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "160 MiB"}, "host": host})
    runs = []
    for job in (Job(trace), Job(written_out(trace))):
        design = make_policy({"name": policy}, 0)
        runs.append(run(Workload((job,)), system, design, record=["timeline"], check=True))
    assert runs[0] == runs[1]
    assert len(runs[0].kernels) == 2 * 4 * 60


def test_file_holds_a_block_once(tmp_path, trace):
    path = tmp_path / "steps.g10t"
    save_trace(trace, path)
    found = load_trace(path)
    assert found == trace
    assert isinstance(found.kernels, Repeated)
    lines = plain_lines(path)
    assert [next(iter(line)) for line in lines] == [
        *("format", *["tensor"] * 5, "repeat_tensors"),
        *(*["kernel"] * 3, "repeat_kernels", "kernel"),
    ]
    assert {key: lines[0][key] for key in ("version", "tensors", "kernels")} == {
        "version": 2,
        "tensors": 9,
        "kernels": 8,
    }
    assert lines[6] == {"repeat_tensors": 2, "times": 3}
    assert lines[10] == {"repeat_kernels": 2, "times": 3, "since": 2, "shift": 2}
    assert lines[11]["kernel"] == 7


def test_traces_without_repetition_stay_files_of_the_first_version(tmp_path):
    path = tmp_path / "chain.g10t"
    save_trace(chain(2), path)
    assert plain_lines(path)[0]["version"] == 1
    assert decode(1, layers=2) == written_out(decode(1, layers=2))
    assert isinstance(decode(1, layers=2).kernels, tuple)


def test_decoding():
    trace = decode(5, layers=3, kernel_ticks=7)
    assert list(problems(trace)) == []
    assert len(trace.kernels) == 5 * 30
    assert sum(kernel.duration for kernel in trace.kernels) == 5 * 30 * 7
    # What the last kernel of a step writes, the first one of the next step reads, and nobody after it.
    (token,) = trace.kernels[29].outputs
    assert trace.kernels[30].inputs == (token,)
    assert (trace.births[token], trace.deaths[token]) == (29, 31)


def plain_lines(path):
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


EARLY = (
    "before it exists; allowed: a tensor that an earlier kernel wrote, a persistent one, or one of kind input"
)
CASES = [
    (
        6,
        {"repeat_tensors": 0},
        7,
        "repeat_tensors: found 0; allowed: 1 to 5, lines that no other line repeats",
    ),
    (
        6,
        {"repeat_tensors": 6},
        7,
        "repeat_tensors: found 6; allowed: 1 to 5, lines that no other line repeats",
    ),
    (6, {"times": 1}, 7, "times: found 1; allowed: 2 to 3, by what the header promises"),
    (6, {"times": 4}, 7, "times: found 4; allowed: 2 to 3, by what the header promises"),
    (6, {"times": "3"}, 7, "times: found '3'; allowed: an integer"),
    (6, {"since": 0}, 7, "found unknown key 'since'; allowed: repeat_tensors, times"),
    (10, {"since": -1}, 11, "since: found -1; allowed: 0 or more"),
    (10, {"shift": -1}, 11, "shift: found -1; allowed: 0 or more"),
    (10, {"shift": None}, 11, "found no shift; allowed: shift with an integer"),
    (
        0,
        {"version": 1},
        7,
        "found {'repeat_tensors': 2, 'times': 3}; allowed: a tensor (the header promises more)",
    ),
    (0, {"kernels": 4}, 11, "repeat_kernels: found 2; allowed: at most 1, as the header promises no more"),
    (
        10,
        {"shift": 3},
        10,
        "kernel 6: 'Down': found unknown tensor 10, as tensor 4 the last time; allowed: 0 to 8",
    ),
    (9, {"outputs": [0]}, 9, f"kernel 3: 'Up': reads tensor 4 ('state') {EARLY}"),
    (10, {"shift": 1}, 12, f"kernel 7: 'End': reads tensor 8 ('state') {EARLY}"),
]


@pytest.mark.parametrize(("place", "changes", "line", "message"), CASES)
def test_messages_name_the_line(tmp_path, trace, place, changes, line, message):
    path = tmp_path / "steps.g10t"
    save_trace(trace, path)
    records = plain_lines(path)
    del records[0]["sha256"]
    for key, value in changes.items():
        if value is None:
            del records[place][key]
        else:
            records[place][key] = value
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(TraceError) as found:
        load_trace(path)
    assert str(found.value) == f"{path}: line {line}: {message}"


def test_what_is_there_before_a_block_may_run_out():
    builder = TraceBuilder("early")
    builder.tensor("input", 8, TensorKind.INPUT)
    builder.tensor("input", 8, TensorKind.INPUT)
    builder.kernel("Work", 1, [0], [])
    builder.tensor("nothing", 8, TensorKind.ACTIVATION)
    builder.repeat(1, 4, since=0, tensors=1)
    found = [(problem.index, problem.message) for problem in problems(builder.build())]
    assert found == [(2, f"'Work': reads tensor 2 ('nothing') {EARLY}")]
