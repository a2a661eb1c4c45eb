"""Steps that are not those of the trace, and moves that cannot be made, are refused and leave no trace."""

import gc

import pytest

torch = pytest.importorskip("torch")

from executed_steps import LOOPS, Loop, Tied, executed, machine, recorded, same, tied, transformer, values

from g10sim.errors import ExecutionError
from g10sim.execute.executor import Executor
from g10sim.execute.memory import Memory
from g10sim.execute.moving import Guide
from g10sim.execute.script import first_difference
from g10sim.policies.interface.moves import Drop, Evict, Free
from g10sim.policies.interface.plan import MigrationPlan, Planned

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def case():
    return recorded(LOOPS["transformer"])


class Lossy(Memory):
    """Loses a byte of large tensors on their way back."""

    def fetch(self, tensor, storage, host):
        if host.nbytes() > 2000:
            host[4] = (host[4] + 1) % 256
        super().fetch(tensor, storage, host)


def test_a_lost_byte_is_noticed(case):
    loop, _ = executed(case, case.budget(), memory=Lossy())
    assert not same(values(loop), case.plain)


def shorter(loop):
    loop.micro_batches = 2


def larger(loop):
    loop.batch = torch.randint(0, 64, (6, 32))


def undecayed(loop):
    loop.optimizer.param_groups[0]["weight_decay"] = 0.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (shorter, "found aten::embedding.default; allowed: aten::"),
        (larger, "operator 0 (aten::embedding.default): found 1536 bytes for tensor"),
        (
            undecayed,
            "found aten::_foreach_lerp_.Scalar; allowed: aten::_foreach_mul_.Scalar, as in the trace",
        ),
    ],
)
@pytest.mark.parametrize("at", [0, 2])
def test_another_step_is_refused_and_leaves_no_trace(case, change, said, at):
    loop, budget = case.step(), case.budget()
    executor = Executor(case.script, budget, Guide(machine(budget)), Memory(), loop.model.parameters())
    plain = case.step()
    with executor:
        for _ in range(at):
            plain()
            with executor.step():
                loop()
        change(loop)
        with pytest.raises(ExecutionError) as caught, executor.step():
            loop()
    assert f"step {at}, " in str(caught.value)
    assert said in str(caught.value)
    loop.batch = plain.batch
    loop.loss = plain.loss
    assert same(values(loop), values(plain))


def test_a_refusal_after_the_optimizer_has_begun_puts_weights_and_states_back(case):
    loop, budget = case.step(), case.budget()
    before = values(loop)
    executor = Executor(case.script, budget, Guide(machine(budget)), Memory(), loop.model.parameters())

    def longer():
        loop()
        loop.model(loop.batch)

    with executor, pytest.raises(ExecutionError, match="allowed: no further operator"), executor.step():
        longer()
    loop.loss = before["loss"]
    assert same(values(loop), before)


def test_a_step_cut_short_is_refused(case):
    loop = case.step()
    with pytest.raises(
        ExecutionError, match=r"step 0: found \d+ operators; allowed: the \d+ of the trace, next"
    ):
        executed(case, case.budget(), loop=loop, step=lambda: loop.model(loop.batch))


def test_a_budget_below_a_working_set_is_refused(case):
    with pytest.raises(ExecutionError, match=r"step 1, kernel \d+: found a working set of \d+ bytes with"):
        executed(case, case.budget(0.05))


@pytest.mark.parametrize(
    ("move", "said"),
    [
        (Drop(0), "found move 'drop'; allowed: await, evict, fetch, free, protect"),
        (Evict(0, "ssd"), "found a move to tier 'ssd'; allowed: host"),
        (Evict(10**6), "found unknown tensor 1000000"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused_before_a_step(case, move, said):
    budget = case.budget()
    guide = Guide(machine(budget), MigrationPlan((Planned(3, move),)))
    with pytest.raises(ExecutionError) as caught:
        Executor(case.script, budget, guide, Memory())
    assert str(caught.value).startswith("kernel 3: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("move", "said"), [(Evict, "leaves, but the kernel needs it"), (Free, "is freed, but read again")]
)
def test_a_plan_that_takes_away_what_a_kernel_needs_is_refused(case, move, said):
    trace, budget = case.script.trace, case.budget()
    kernel = next(kernel for kernel in trace.kernels if kernel.inputs and kernel.id)
    plan = MigrationPlan((Planned(kernel.id, move(kernel.inputs[0])),))
    with pytest.raises(ExecutionError, match=said):
        executed(case, budget, Guide(machine(budget), plan))


def test_tied_weights_and_values_that_are_looked_at():
    case = recorded({"make": tied, "looks": True})
    loop, executor = executed(case, case.budget(0.8))
    assert isinstance(loop.model, Tied)
    assert same(values(loop), case.plain)
    plain = Loop(**case.options)
    for _ in range(len(loop.losses)):
        plain()
    assert plain.losses == loop.losses
    assert executor.reports[-1].faults > 0


@pytest.mark.parametrize("share", [0.9, 0.75, 0.45])
def test_demand_keeps_to_small_budgets(case, share):
    loop, executor = executed(case, case.budget(share))
    assert same(values(loop), case.plain)
    assert max(report.peak_bytes for report in executor.reports) <= case.budget(share)


def test_views_of_tensors_that_are_away(case):
    loop, budget = case.step(), case.budget()
    executor = Executor(case.script, budget, Guide(machine(budget)), Memory(), loop.model.parameters())
    with executor:
        for _ in range(2):
            with executor.step():
                loop()
        weight = loop.model.layers[0].linear1.weight.detach()
        expected = weight.clone()
        number = executor.account.number_of(weight)
        for view in (
            lambda w: w.t(), lambda w: w[2:], lambda w: w.view(-1), lambda w: w.select(0, 1),
            lambda w: w.split(16)[1], lambda w: w.expand(2, *w.shape), lambda w: w.permute(1, 0),
            lambda w: w.unsqueeze(0), lambda w: w.as_strided((4,), (2,)), lambda w: w.chunk(2)[0],
            lambda w: w.narrow(0, 1, 2), lambda w: w.transpose(0, 1),
        ):  # fmt: skip
            executor.account.restore()
            assert executor.account.evict(number, "planned")
            seen = view(weight)
            assert number in executor.account.host
            assert torch.equal(seen, view(expected))


def test_a_deleted_model_leaves_nothing_behind(case):
    loop, budget = case.step(), case.budget()
    executor = Executor(case.script, budget, Guide(machine(budget)), Memory())
    with executor:
        for _ in range(2):
            with executor.step():
                loop()
        for number in list(executor.account.here)[:8]:
            executor.account.evict(number, "planned")
        assert executor.account.host
        del loop
        gc.collect()
        assert not executor.account.host
        assert executor.account.used_bytes == 0


def test_scripts_that_differ_name_both_operators(case):
    other = recorded({"make": transformer, "fused": True})
    assert first_difference(case.script, case.script) is None
    said = first_difference(other.script, case.script)
    assert said.endswith(
        "found aten::_foreach_add_.Scalar; allowed: aten::_foreach_add_.Tensor, as in the trace"
    )
