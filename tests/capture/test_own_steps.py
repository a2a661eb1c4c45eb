"""Steps that users write themselves: phases, micro-batches, names, memory, and what is refused."""

import warnings
from collections import Counter
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'g10sim[capture]'")

import own_steps
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.capture import capture_step
from g10sim.capture.devices import fake_device, known_values
from g10sim.capture.operators import launches_nothing
from g10sim.capture.options import StepOptions
from g10sim.capture.source import capture_source
from g10sim.cli.capture import capture
from g10sim.cli.trace import info
from g10sim.errors import ConfigError, TraceError
from g10sim.trace.check import check_trace
from g10sim.trace.format import load_trace, save_trace
from g10sim.trace.model import Phase, TensorKind

pytestmark = pytest.mark.slow

HERE = str(Path(__file__).parent)
OPTIMIZERS = (
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "Muon", "NAdam", "RAdam"),
    *("RMSprop", "Rprop", "SGD"),
)


@pytest.fixture(scope="module")
def accumulation():
    return capture_step(own_steps.accumulating)


def kernels(trace, phase, micro_batch=0):
    return [k for k in trace.kernels if (k.phase, k.micro_batch) == (phase, micro_batch)]


def test_micro_batches_are_counted_and_the_update_belongs_to_none(accumulation):
    found = [(kernel.phase, kernel.micro_batch) for kernel in accumulation.kernels]
    order = [(phase, n) for n in range(1, 5) for phase in (Phase.FORWARD, Phase.BACKWARD)]
    assert list(dict.fromkeys(found)) == [*order, (Phase.OPTIMIZER, 0)]
    # Two products forward, four backward but for the gradient of the input, in each micro-batch.
    for number in range(1, 5):
        products = Counter(k.phase for k in accumulation.kernels if k.flops and k.micro_batch == number)
        assert products == {Phase.FORWARD: 2, Phase.BACKWARD: 3}


def test_unscaling_clipping_and_an_average_of_weights_belong_to_the_optimizer(accumulation):
    names = [kernel.name for kernel in kernels(accumulation, Phase.OPTIMIZER)]
    order = ["_amp_foreach_non_finite_check_and_unscale_", "_foreach_norm", "_foreach_addcmul_", "lerp_"]
    assert [names.index(name) for name in order] == sorted(names.index(name) for name in order)
    assert names.count("lerp_") == 6


def test_weights_gradients_and_averages_are_shared_by_the_micro_batches(accumulation):
    tensors = accumulation.tensors
    gradients = [tensor.name for tensor in tensors if tensor.kind is TensorKind.GRADIENT]
    weights = [tensor.name for tensor in tensors if tensor.kind is TensorKind.WEIGHT]
    assert sorted(gradients) == sorted(f"{name}.grad" for name in weights if name.startswith("model."))
    assert len([name for name in weights if name.startswith("average.")]) == 6
    assert all(tensor.persistent for tensor in tensors if tensor.kind is TensorKind.WEIGHT)
    for tensor in tensors:
        if tensor.kind is TensorKind.GRADIENT:
            writers = {k.micro_batch for k in accumulation.kernels if tensor.id in k.outputs}
            assert writers == {0, 1, 2, 3, 4}  # 0: unscaled and clipped
    states = {tensor.name for tensor in tensors if tensor.kind is TensorKind.OPTIMIZER_STATE}
    assert {"model.0.weight.square_avg", "model.3.bias.momentum_buffer"} <= states


class Operators(TorchDispatchMode):
    """The operators that launch kernels, each with the phase of the hook that was called last."""

    def __init__(self):
        super().__init__()
        self.phase, self.found = None, []

    def enter(self, phase):
        def hook(*_):
            self.phase = phase

        return hook

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.rpartition("::")[2]
        if not launches_nothing(func):
            # The gradient of the loss is made before autograd calls a hook.
            self.found.append((name, Phase.BACKWARD if name == "ones_like" else self.phase))
        return func(*args, **(kwargs or {}))


def test_phases_are_those_that_hooks_tell():
    with fake_device(StepOptions()):
        told = Operators()
        with known_values():
            step = own_steps.plain_accumulation(
                watch=lambda loss: loss.register_hook(told.enter(Phase.BACKWARD))
            )
        step()
        handles = [
            register_module_forward_pre_hook(told.enter(Phase.FORWARD)),
            register_optimizer_step_pre_hook(told.enter(Phase.OPTIMIZER)),
        ]
        with told:
            step()
        for handle in handles:
            handle.remove()
    counters = told.found.index(("_foreach_add_", Phase.OPTIMIZER))  # of steps, in host memory
    del told.found[counters]
    trace = capture_step(own_steps.plain_accumulation)
    made = {kernel.name for kernel in trace.kernels}
    assert [(kernel.name, kernel.phase) for kernel in trace.kernels] == [
        (name, phase) for name, phase in told.found if name in made
    ]
    assert {phase for _, phase in told.found} == {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}


@pytest.mark.parametrize("zeroed", [False, True])
def test_memory_of_an_accumulation_agrees_with_pytorchs_tracker(zeroed):
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()

    def build(**options):
        return own_steps.plain_accumulation(batch_size=64, zeroed=zeroed, **options)

    with fake_device(StepOptions()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with known_values():
            step = build(before=tracker.reset_mod_stats)  # it follows one call of a network at a time
        step()
        tracker.track_external(step.model, step.optimizer, *step.batches)
        with tracker:
            step()
    snapshot = next(iter(tracker.get_tracker_snapshot("peak").values()))
    peak = next(amount for kind, amount in snapshot.items() if str(kind) == "Total")
    trace = capture_step(build)
    assert peak_live_bytes(trace) == pytest.approx(peak, rel=0.01)
    gradients = [tensor for tensor in trace.tensors if tensor.kind is TensorKind.GRADIENT]
    assert len(gradients) == len(list(step.model.parameters()))
    assert all(tensor.persistent == zeroed for tensor in gradients)


def test_a_generator_of_steps_trains_two_networks_in_turn():
    trace = capture_step(own_steps.adversarial)
    check_trace(trace)
    assert not any(kernel.micro_batch for kernel in trace.kernels)
    phases = [trace.kernels[0].phase]
    for kernel in trace.kernels:
        phases += [kernel.phase] if kernel.phase is not phases[-1] else []
    assert phases == 2 * [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert {"generator.first.weight", "judge.weight"} <= {tensor.name for tensor in trace.tensors}
    inputs = {tensor.name for tensor in trace.tensors if tensor.kind is TensorKind.INPUT}
    assert inputs == {"noise", "real"}  # not what is left of the step before, which this one replaces
    layers = {kernel.layer for kernel in trace.kernels}
    assert {"generator.first", "judge"} <= layers


def test_an_update_by_hand_is_the_optimizer():
    trace = capture_step(own_steps.by_hand)
    (update,) = kernels(trace, Phase.OPTIMIZER)
    assert update.name == "sub_"
    assert [trace.tensors[tensor].kind for tensor in update.outputs] == [TensorKind.WEIGHT]


def test_the_closure_of_an_optimizer_is_a_forward_and_a_backward_pass():
    trace = capture_step(own_steps.with_a_closure)
    assert [kernel.name for kernel in kernels(trace, Phase.OPTIMIZER)] == ["_foreach_add_"]
    assert {kernel.phase for kernel in trace.kernels if kernel.flops} == {Phase.FORWARD, Phase.BACKWARD}
    gradients = [tensor for tensor in trace.tensors if tensor.kind is TensorKind.GRADIENT]
    assert len(gradients) == 4
    assert not any(tensor.persistent for tensor in gradients)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_of_pytorch_is_captured(name):
    trace = capture_step(own_steps.trained_with(name))
    check_trace(trace)
    updated = {tensor for kernel in kernels(trace, Phase.OPTIMIZER) for tensor in kernel.outputs}
    weights = {t.name for t in trace.tensors if t.kind is TensorKind.WEIGHT and t.id in updated}
    matrices = {"first.weight", "second.weight"}
    assert weights == (matrices if name == "Muon" else matrices | {"first.bias", "second.bias"})
    assert "operators_priced_by_bytes" not in trace.origin


def test_the_samples_are_those_of_the_functions_own_batch_size(monkeypatch, tmp_path):
    monkeypatch.chdir(HERE)
    trace = capture_source("own_steps:accumulating", gpu="a100-40g", steps=2)
    assert trace.batch_size == 64
    assert capture_source("own_steps:by_hand", gpu="a100-40g", batch_size=4).batch_size == 4
    assert trace.origin["command"] == (
        "g10sim trace capture own_steps:accumulating --dtype float32 --attention fused --steps 2 "
        "--gpu a100-40g"
    )
    assert [kernel.micro_batch for kernel in trace.kernels if kernel.phase is Phase.OPTIMIZER] == 2 * 28 * [0]
    assert max(kernel.micro_batch for kernel in trace.kernels) == 4
    save_trace(trace, tmp_path / "kept.g10t")
    assert load_trace(tmp_path / "kept.g10t") == trace


def run(command, *arguments):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_trace_info_tells_the_micro_batches(monkeypatch, tmp_path):
    monkeypatch.chdir(HERE)
    out = tmp_path / "own.g10t"
    result = run(capture, "own_steps:plain_accumulation", "--gpu", "a100-40g", "-o", out)
    assert result.exit_code == 0, result.output
    told = run(info, out).output
    assert "micro-batches" in told
    assert "4 for each update" in told


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (
            "once",
            {},
            "own_steps.py:{line}: found a generator that ended after 1 steps; allowed: one that yields",
        ),
        ("by_hand", {"optimizer": "sgd"}, "--optimizer: found sgd, but"),
        ("by_hand", {"inference": True}, "--inference: found True, but"),
        (
            "adversarial",
            {"autocast": "bfloat16"},
            "allowed: only what --dtype, --attention, --steps, --workspace",
        ),
    ],
)
def test_what_a_step_of_ones_own_cannot_take_is_refused(monkeypatch, source, options, message):
    monkeypatch.chdir(HERE)
    line = getattr(own_steps, source).__code__.co_firstlineno
    with pytest.raises(ConfigError) as refused:
        capture_source(f"own_steps:{source}", gpu="a100-40g", **options)
    assert message.format(line=line) in str(refused.value)


def test_a_step_that_looks_at_values_is_refused_with_its_line(monkeypatch):
    monkeypatch.chdir(HERE)
    with pytest.raises(TraceError) as refused:
        capture_source("own_steps:looking", gpu="a100-40g")
    text = Path(own_steps.__file__).read_text().splitlines()
    line = next(n for n, line in enumerate(text, 1) if "the line that a refusal names" in line)
    assert f"own_steps.py:{line} (step): found the operator aten._local_scalar_dense" in str(refused.value)


def test_what_outlives_the_step_is_there_at_its_end():
    trace = capture_step(own_steps.dropping_late)
    ends = {tensor.name: trace.deaths[tensor.id] for tensor in trace.tensors if not tensor.persistent}
    gradients = [tensor for tensor in trace.tensors if tensor.kind is TensorKind.GRADIENT]
    assert len(gradients) == 4
    assert {ends[tensor.name] for tensor in gradients} == {len(trace.kernels)}
    assert ends["Sequential:sum"] == len(trace.kernels)


@pytest.mark.parametrize(("waits", "last"), [(True, "mul"), (False, "max")])
def test_a_value_on_the_host_is_a_use_of_its_tensor(waits, last):
    def build():
        return own_steps.asking_a_router(waits=waits)

    trace = capture_step(build, gpu="a100-40g", routing="uniform")
    names = [kernel.name for kernel in trace.kernels]
    assert names == ["addmm", "topk", "max", "mul", "add_"]
    (highest,) = trace.kernels[names.index("max")].outputs
    users = [kernel.name for kernel in trace.kernels if highest in (*kernel.inputs, *kernel.outputs)]
    assert users[-1] == last


def capture_command(monkeypatch, tmp_path, name, *options):
    monkeypatch.chdir(HERE)
    app = typer.Typer()
    app.command()(capture)
    out = str(tmp_path / f"{name}.g10t")
    return CliRunner().invoke(app, [f"own_steps:{name}", "--gpu", "a100-40g", "-o", out, *options])


@pytest.mark.parametrize(
    ("source", "hint"),
    [("looking", "remove .item(), float(), int()"), ("branching", "take one side of the branch")],
)
def test_a_step_that_looks_at_values_is_told_what_to_change(monkeypatch, source, hint):
    monkeypatch.chdir(HERE)
    with pytest.raises(TraceError) as refused:
        capture_source(f"own_steps:{source}", gpu="a100-40g")
    assert hint in str(refused.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("engine", "found a DeepSpeedEngine of deepspeed; allowed: return (engine.module, a batch)"),
        ("of_an_engine", "found a DeepSpeedEngine of deepspeed; allowed: return (engine.module, a batch)"),
        ("sharded", "allowed: no FullyShardedDataParallel: return the module without FSDP"),
    ],
)
def test_what_runs_steps_by_itself_is_refused_by_name(monkeypatch, source, message):
    monkeypatch.chdir(HERE)
    with pytest.raises((ConfigError, TraceError)) as refused:
        capture_source(f"own_steps:{source}", gpu="a100-40g")
    assert message in str(refused.value)


@pytest.mark.parametrize("source", ["compiled", "of_a_compiled_function"])
def test_what_is_compiled_is_captured_as_it_is_written_and_told(monkeypatch, tmp_path, source):
    ended = capture_command(monkeypatch, tmp_path, source)
    assert ended.exit_code == 0, ended.output
    assert "torch.compile: operators were captured one by one" in ended.output
    if source == "compiled":
        monkeypatch.chdir(HERE)
        kernels = load_trace(tmp_path / "compiled.g10t").kernels
        plain = capture_source("own_steps:plain", gpu="a100-40g").kernels
        assert [kernel.name for kernel in kernels] == [kernel.name for kernel in plain]


def test_the_last_line_names_what_was_captured_of_steps_that_differ(monkeypatch, tmp_path):
    ended = capture_command(monkeypatch, tmp_path, "of_many_lengths", "--dtype", "bfloat16")
    assert "the first has inputs of 4 x 16 x 8, captured is one with 4 x 32 x 8" in ended.stderr
    assert ended.stdout.splitlines()[-1] == "captured: bfloat16, batch size 1, inputs 4 x 32 x 8"
