"""Orders of a step's kernels: micro-batches block by block, and the update of weights in the next step."""

import random
from dataclasses import replace

import pytest
from accumulated import stage
from hypothesis import given, settings
from hypothesis import strategies as st

import g10sim
from g10sim.analysis.footprint import live_bytes_by_kind, peak_live_bytes, visited_weight_bytes
from g10sim.cli.main import main
from g10sim.errors import TraceError
from g10sim.trace.check import check_trace
from g10sim.trace.format import load_trace, save_trace
from g10sim.trace.model import Device, Phase
from g10sim.trace.model import TensorKind as Kind
from g10sim.trace.order import delayed_optimizer, vertical
from g10sim.trace.synthetic import TraceBuilder

MIB = 1 << 20


def accumulation(blocks=2, micro_batches=2, optimizer=Device.GPU):
    """A step with weights of 8 MiB, gradients of 4 MiB and activations of 1 MiB; a kernel takes 1 ms."""
    builder = TraceBuilder("accumulation")
    weights = [builder.tensor(f"{i}.weight", 8 * MIB, Kind.WEIGHT, persistent=True) for i in range(blocks)]
    gradients = [builder.tensor(f"{i}.gradient", 4 * MIB, Kind.GRADIENT) for i in range(blocks)]
    for number in range(1, micro_batches + 1):
        x = [builder.tensor(f"input {number}", MIB, Kind.INPUT)]
        for i in range(blocks):
            x.append(builder.tensor(f"{i} output {number}", MIB, Kind.ACTIVATION))
            own = {"layer": f"blocks.{i}.linear", "micro_batch": number}
            builder.kernel(f"forward {i}", 10**6, [x[i], weights[i]], [x[-1]], Phase.FORWARD, **own)
        for i in reversed(range(blocks)):
            own = {"layer": f"blocks.{i}.linear", "micro_batch": number}
            summed = [gradients[i]] if number > 1 else []
            inputs = [x[i], x[i + 1], weights[i], *summed]
            builder.kernel(f"backward {i}", 10**6, inputs, [gradients[i]], Phase.BACKWARD, **own)
    for i in range(blocks):
        given = [weights[i], gradients[i]]
        builder.kernel(f"update {i}", 10**6, given, [weights[i]], Phase.OPTIMIZER, device=optimizer)
    return builder.build()


def run_order(trace):
    """Kernels with their micro-batches."""
    return [f"{k.name} ({k.micro_batch})" if k.micro_batch else k.name for k in trace.kernels]


def results(trace, steps, order=None):
    """Return what weights are after some steps: every kernel writes what it is and what it has read."""
    holds = {t.id: f"{t.name} at the start" for t in trace.tensors}
    for _ in range(steps):
        for kernel in order or trace.kernels:
            value = hash((kernel.name, kernel.micro_batch, *(holds[t] for t in kernel.inputs)))
            holds.update((t, hash((value, t))) for t in kernel.outputs)
    return {t.name: holds[t.id] for t in trace.tensors if t.kind is Kind.WEIGHT}


def test_micro_batches_of_a_block_run_one_after_the_other():
    trace = vertical(accumulation())
    check_trace(trace)
    assert run_order(trace) == [
        *("forward 0 (1)", "forward 0 (2)", "forward 1 (1)", "forward 1 (2)"),
        *("backward 1 (1)", "backward 1 (2)", "backward 0 (1)", "backward 0 (2)"),
        *("update 0", "update 1"),
    ]
    assert [kernel.id for kernel in trace.kernels] == list(range(10))
    assert trace.origin["order"] == "vertical"
    assert vertical(trace).kernels == trace.kernels


def test_weights_come_in_once_each_way_and_activations_add_up():
    given = accumulation(blocks=3, micro_batches=4)
    trace = vertical(given)
    # Forward 0 1 2, backward (2) 1 0, and so on: five weights, then four for each further micro-batch.
    assert visited_weight_bytes(given) == (5 + 3 * 4) * 8 * MIB
    assert visited_weight_bytes(trace) == 5 * 8 * MIB
    assert max(live_bytes_by_kind(given)[Kind.ACTIVATION]) == 3 * MIB
    assert max(live_bytes_by_kind(trace)[Kind.ACTIVATION]) == 4 * 3 * MIB


def test_fewer_bytes_move_where_weights_are_streamed():
    """Of four blocks' weights, 32 MiB, two fit beside their gradients: all micro-batches fetch them again."""
    given = accumulation(blocks=4, micro_batches=4)
    orders = given, vertical(given), delayed_optimizer(vertical(given))
    system = {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "20 MiB"}}
    rows = [g10sim.simulate(one, system, "stream", iterations=2).summary for one in orders]
    moved = [row["host_to_gpu_bytes"] for row in rows]
    assert moved[0] > 2 * moved[1] > 2 * moved[2]
    # 16 forward, 16 backward kernels and 4 updates of 1 ms at 1.2 GHz.
    assert [row["ideal_cycles"] for row in rows] == 3 * [36 * 1_200_000]


def test_a_step_without_micro_batches_is_refused():
    given = accumulation(micro_batches=1)
    with pytest.raises(TraceError, match=r"^a\.g10t: found no two micro-batches in a row; allowed: kernels "):
        vertical(given, "a.g10t")


def test_micro_batches_of_other_blocks_are_refused():
    given = accumulation()
    kernels = list(given.kernels)
    kernels[5] = replace(kernels[5], layer="blocks.7.linear")
    with pytest.raises(TraceError) as refused:
        vertical(replace(given, kernels=tuple(kernels)))
    assert str(refused.value) == (
        "trace: found kernel 5 (forward 1, forward of 'blocks.7') in micro-batch 2 where micro-batch 1 has "
        "kernel 1 (forward 1, forward of 'blocks.1'); allowed: micro-batches that run the same blocks"
    )


def test_a_micro_batch_that_needs_the_one_before_is_refused():
    given = accumulation()
    kernels = list(given.kernels)
    gradient = given.tensors[2].id
    kernels[4] = replace(kernels[4], inputs=(*kernels[4].inputs, gradient))  # made by kernel 3
    with pytest.raises(TraceError) as refused:
        vertical(replace(given, kernels=tuple(kernels)))
    assert str(refused.value) == (
        "trace: kernel 4 (forward 0) uses '0.gradient' as kernel 3 (backward 0) left it, and in the vertical "
        "order as the step before did; allowed: micro-batches that need each other's results within a block "
        "at most"
    )


def test_weights_are_updated_right_before_their_forward_pass():
    trace = delayed_optimizer(vertical(accumulation()))
    check_trace(trace)
    assert run_order(trace) == [
        *("update 0", "forward 0 (1)", "forward 0 (2)", "update 1", "forward 1 (1)", "forward 1 (2)"),
        *("backward 1 (1)", "backward 1 (2)", "backward 0 (1)", "backward 0 (2)"),
    ]
    assert [tensor.name for tensor in trace.tensors if tensor.persistent] == [
        *("0.weight", "1.weight", "0.gradient", "1.gradient")
    ]
    assert trace.origin["order"] == "vertical, optimizer delayed"


def test_what_prepares_an_update_goes_with_it_and_what_nothing_needs_follows():
    given = accumulation(micro_batches=1)
    builder = TraceBuilder("step")
    names = [builder.tensor(t.name, t.size_bytes, t.kind, persistent=t.persistent) for t in given.tensors]
    for k in given.kernels[:4]:
        builder.kernel(k.name, k.duration, k.inputs, k.outputs, k.phase)
    first, second, *gradients = names[:4]
    averages = [builder.tensor(f"{i}.average", MIB, Kind.OTHER, persistent=True) for i in range(2)]
    scaled = [builder.tensor(f"{i}.scaled", MIB, Kind.TEMPORARY) for i in range(2)]
    for i in range(2):
        builder.kernel(f"scale {i}", 10**6, [gradients[i]], [scaled[i]], Phase.OPTIMIZER)
    for i, weight in enumerate((first, second)):
        builder.kernel(f"update {i}", 10**6, [weight, scaled[i]], [weight], Phase.OPTIMIZER)
        builder.kernel(f"average {i}", 10**6, [weight, averages[i]], [averages[i]], Phase.OPTIMIZER)
    assert run_order(delayed_optimizer(builder.build())) == [
        *("scale 0", "update 0", "average 0", "forward 0", "scale 1", "update 1", "average 1", "forward 1"),
        *("backward 1", "backward 0"),
    ]


@pytest.mark.parametrize("optimizer", list(Device))
def test_a_step_that_does_not_end_with_an_update_on_the_gpu_is_refused(optimizer):
    given = accumulation(optimizer=optimizer)
    given = given if optimizer is Device.CPU else replace(given, kernels=given.kernels[:8])
    with pytest.raises(
        TraceError, match=r"^step\.g10t: found a step that does not end with the optimizer on "
    ):
        delayed_optimizer(given, "step.g10t")


def test_a_step_that_only_updates_is_refused():
    given = accumulation(micro_batches=1)
    with pytest.raises(TraceError, match="found a step that does not end with the optimizer"):
        delayed_optimizer(replace(given, kernels=given.kernels[4:]))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_any_step_computes_the_same(seed):
    """Random kernels; the update is run once before the delayed steps, and once less in the last."""
    draw = random.Random(seed)
    builder = TraceBuilder("random")
    tensors = [builder.tensor(str(i), 1, Kind.WEIGHT, persistent=True) for i in range(8)]
    phases = [Phase.FORWARD, Phase.OPTIMIZER, Phase.BACKWARD, Phase.FORWARD]
    drawn = [draw.choice(phases) for _ in range(draw.randint(2, 20))]
    for number, phase in enumerate([Phase.FORWARD, *drawn, Phase.OPTIMIZER]):
        reads, writes = (draw.sample(tensors, draw.randint(0, 3)) for _ in range(2))
        builder.kernel(f"kernel {number}", 1, reads, writes, phase)
    given = builder.build()
    trace = delayed_optimizer(given)
    end = max(k.id for k in given.kernels if k.phase is not Phase.OPTIMIZER) + 1
    late = {kernel.name for kernel in given.kernels[end:]}
    before = [k for k in given.kernels if k.name not in late]
    steps = [before, *[trace.kernels] * 2, given.kernels[end:]]
    in_turn = [kernel for step in steps for kernel in step]
    assert results(given, 1, in_turn) == results(given, 3)


def test_the_accumulated_gradients_are_the_same():
    for trace in (accumulation(3, 3), stage(1, 3, layers=2)):
        assert results(vertical(trace), 2) == results(trace, 2)


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = accumulation(3, 4)
    save_trace(given, "step.g10t")

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["g10sim", "trace", "reorder", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, *capsys.readouterr()

    both = delayed_optimizer(vertical(given))
    code, output, errors = run("step.g10t", "--vertical", "--delay-optimizer", "-o", "other.g10t")
    assert (code, errors) == (0, "")
    assert load_trace("other.g10t") == both
    sizes = [f"{peak_live_bytes(trace) / MIB:.1f} MiB" for trace in (both, given)]
    assert output.splitlines() == [
        "other.g10t: 27 kernels, 22 tensors",
        f"most alive at a time: {sizes[0]} (before: {sizes[1]})",
        "most activations alive at a time: 12.0 MiB (before: 3.00 MiB)",
        "weights to bring in, with those of one block kept: 40.0 MiB (before: 136 MiB)",
    ]
    message = "error: --vertical, --delay-optimizer: found neither; allowed: one of them or both\n"
    assert run("step.g10t", "-o", "x.g10t") == (2, "", message)
    assert not (tmp_path / "x.g10t").exists()
    assert run("other.g10t", "--delay-optimizer", "-o", "x.g10t")[0] == 2
