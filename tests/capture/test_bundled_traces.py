import hashlib
from pathlib import Path

import pytest

import g10sim
from g10sim.analysis.footprint import footprint_bytes, live_bytes, peak_live_bytes, working_set_bytes
from g10sim.capture.manifest import MANIFEST, read_manifest
from g10sim.config.data import data_path
from g10sim.errors import UnsupportedError
from g10sim.trace.check import check_trace
from g10sim.trace.format import load_trace
from g10sim.trace.model import Phase, TensorKind

ENTRIES = read_manifest(data_path("traces", MANIFEST)).traces
A100_BYTES = 40 * 2**30
SYSTEM = "a100-40g-pcie3-znand"
POLICIES = ("ideal", "base_uvm", "deepum", "g10")
CONTIGUOUS = ("flashneuron", "g10_gds", "g10_host")
FEW_KERNELS = 700
MANY_KERNELS = 2500
PAPER = ("bert-base", "vit-base", "inception-v3", "resnet152", "senet154")


@pytest.fixture(params=ENTRIES, ids=[entry.file for entry in ENTRIES])
def entry(request):
    return request.param


@pytest.fixture
def trace(entry):
    return load_trace(data_path("traces", entry.file))


def test_every_bundled_trace_is_listed():
    assert {path.name for path in data_path("traces").glob("*.g10t")} == {entry.file for entry in ENTRIES}


def test_bundled_traces_are_small():
    assert sum(path.stat().st_size for path in data_path("traces").iterdir()) < 25 * 10**6


def test_a_bundled_trace_is_what_the_manifest_says(entry, trace):
    path = data_path("traces", entry.file)
    check_trace(trace)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == entry.sha256
    assert (len(trace.tensors), len(trace.kernels)) == (entry.tensors, entry.kernels)
    assert peak_live_bytes(trace) == entry.peak_live_bytes
    assert footprint_bytes(trace) == entry.footprint_bytes
    assert sum(kernel.duration for kernel in trace.kernels) == entry.kernel_time_ns
    sources = {kernel.time_source.value for kernel in trace.kernels}
    assert sources == set(entry.time_source.split(", "))
    assert (trace.origin["command"], trace.origin["gpu"]) == (entry.command, entry.gpu)
    assert entry.versions["torch"] == trace.origin["torch"]


def test_every_kernel_of_a_bundled_trace_fits_a_40_gib_gpu(trace):
    assert max(working_set_bytes(trace)) < A100_BYTES


@pytest.mark.parametrize("model", PAPER)
def test_each_model_of_the_paper_oversubscribes_a_40_gib_gpu_at_two_batch_sizes(model):
    found = [entry for entry in ENTRIES if entry.file.startswith(f"{model}-b") and "bf16" not in entry.file]
    assert sum(entry.peak_live_bytes > A100_BYTES for entry in found) >= 2


def sizes(trace, kind):
    return {tensor.name: tensor.size_bytes for tensor in trace.tensors if tensor.kind is kind}


@pytest.mark.parametrize(
    ("mixed", "single"),
    [
        ("bert-base-bf16-b768-s128", "bert-base-b512-s128"),
        ("vit-base-bf16-b1024", "vit-base-b1024"),
        ("resnet152-bf16-b768", "resnet152-b512"),
        ("gpt2-xl-bf16-b8-s1024", "gpt2-xl-b8-s1024"),
    ],
)
def test_autocast_keeps_float32_weights_and_casts_them_in_kernels_with_results(mixed, single):
    trace, whole = (load_trace(data_path("traces", f"{name}.g10t")) for name in (mixed, single))
    for kind in (TensorKind.WEIGHT, TensorKind.GRADIENT, TensorKind.OPTIMIZER_STATE):
        assert sizes(trace, kind) == sizes(whole, kind)
    casts = [
        kernel
        for kernel in trace.kernels
        if kernel.name == "_to_copy" and trace.tensors[kernel.inputs[0]].kind is TensorKind.WEIGHT
    ]
    assert casts
    for kernel in casts:
        weight, cast = trace.tensors[kernel.inputs[0]], trace.tensors[kernel.outputs[0]]
        assert 2 * cast.size_bytes == weight.size_bytes
        assert kernel.moved_bytes == cast.size_bytes + weight.size_bytes
        assert kernel.duration * 1555e9 > kernel.moved_bytes * 1e9  # no faster than the memory of an A100
        assert not cast.persistent


def test_llama_with_master_weights_has_16_bytes_a_parameter_at_the_end_of_the_backward_pass():
    trace = load_trace(data_path("traces", "llama-3-8b-fp32-master-b1-s8192.g10t"))
    parameters = 8_030_261_248  # of Llama 3 8B, as its model card counts them
    weights, states, gradients = (
        sizes(trace, kind) for kind in (TensorKind.WEIGHT, TensorKind.OPTIMIZER_STATE, TensorKind.GRADIENT)
    )
    assert sum(weights.values()) == sum(gradients.values()) == 2 * parameters
    steps = 4 * len(weights)
    assert sum(states.values()) == 12 * parameters + steps
    first = next(kernel.id for kernel in trace.kernels if kernel.phase is Phase.OPTIMIZER)
    assert live_bytes(trace)[first] == pytest.approx(16 * parameters, rel=0.02)


@pytest.mark.parametrize(
    ("name", "seconds"),
    [  # sums of the kernels that were measured for the paper: docs/kernel-times.md
        ("bert-base-b256", 7.29),
        ("vit-small-b1280", 3.72),
        ("inception-v3-b1536", 59.69),
        ("resnet152-b1280", 112.59),
        ("senet154-b1024", 132.87),
    ],
)
def test_graphs_of_the_g10_paper_take_the_published_time_within_7_percent(name, seconds):
    trace = load_trace(data_path("traces", "g10", f"{name}.g10t"))
    took = sum(kernel.duration for kernel in trace.kernels) / trace.ticks_per_second
    assert took == pytest.approx(seconds, rel=0.07)


def test_a_large_decoder_and_a_llama_are_among_them():
    sources = " ".join(entry.command for entry in ENTRIES)
    assert "hf:gpt2-xl" in sources
    assert "hf:Meta-Llama-3-8B" in sources


def test_a_bundled_trace_fits_a_40_gib_gpu():
    assert any(entry.peak_live_bytes < A100_BYTES for entry in ENTRIES)


def cells(policies):
    """Each trace under each policy; by night all but one policy of a trace, and long simulations."""
    short = [entry for entry in ENTRIES if entry.kernels <= MANY_KERNELS]
    daily = {(entry.file, policies[number % len(policies)]) for number, entry in enumerate(short)}
    for entry in ENTRIES:
        for policy in policies:
            marks = () if (entry.file, policy) in daily else pytest.mark.nightly
            yield pytest.param(entry, policy, id=f"{entry.file}-{policy}", marks=marks)


def simulated(entry, policy):
    """Run without ``compat``, where that is quick with every invariant tested on the way."""
    trace = load_trace(data_path("traces", entry.file))
    check = len(trace.kernels) < FEW_KERNELS
    return g10sim.simulate(trace, SYSTEM, policy, iterations=1, check=check).performance


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "policy"), [*cells(POLICIES)])
def test_policies_run_every_bundled_trace(workload, policy):
    assert 0 < simulated(workload, policy) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("workload", "policy"), [*cells(CONTIGUOUS)])
def test_designs_of_contiguous_memory_run_a_bundled_trace_or_say_why_they_cannot(workload, policy):
    performance, reason = 0, ""
    try:
        performance = simulated(workload, policy)
    except UnsupportedError as error:
        reason = str(error)
    assert 0 < performance <= 1 or "GPU memory" in reason or "allowed: a GPU with room" in reason


def test_the_guide_to_capture_has_a_row_for_each_bundled_trace(entry):
    guide = Path(__file__).parents[2] / "docs" / "capture.md"
    alive = f"{entry.peak_live_bytes / 2**30:.1f} GiB | {entry.peak_live_bytes / A100_BYTES:.2f}"
    row = f"| `{entry.file}` | {alive} | {entry.kernels} | {entry.kernel_time_ns / 1e9:.2f} s |"
    assert row in guide.read_text(encoding="utf-8").splitlines()
