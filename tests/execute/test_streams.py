"""Copies on CUDA streams are ordered with kernels: without any one of the waits they are not."""

import pytest

pytest.importorskip("torch")

from executed_steps import LOOPS, STEPS, machine, recorded, same, slow, under, values
from stream_model import COMPUTE, IN, OUT, ModelMemory, RaceError

from g10sim.execute.executor import Executor
from g10sim.execute.moving import Guide

pytestmark = pytest.mark.slow

WAITS = [("evict", OUT), ("reclaim", COMPUTE), ("fetch", IN), ("arrive", COMPUTE)]
NAMES = ("foreach", "checkpointing")


@pytest.fixture(scope="module")
def cases():
    return {name: recorded(LOOPS[name]) for name in NAMES}


def run(case, policy, without=None):
    budget = case.budget()
    guide = under(case, policy, budget, slow(case.script.trace)) if policy else Guide(machine(budget))
    memory, loop = ModelMemory(without), case.step()
    executor = Executor(case.script, budget, guide, memory, loop.model.parameters(), undo=False)
    memory.account = executor.account
    with executor:
        for _ in range(STEPS + 1):
            with executor.step():
                loop()
    return loop, executor


@pytest.mark.parametrize("policy", [None, "g10"], ids=["demand", "g10"])
@pytest.mark.parametrize("name", NAMES)
def test_copies_do_not_race_with_kernels(cases, name, policy):
    loop, executor = run(cases[name], policy)
    assert same(values(loop), cases[name].plain)
    assert max(report.peak_bytes for report in executor.reports) <= cases[name].budget()


@pytest.mark.parametrize("without", WAITS, ids=lambda wait: f"{wait[0]} on {wait[1]}")
@pytest.mark.parametrize("policy", [None, "g10"], ids=["demand", "g10"])
def test_each_wait_is_needed(cases, policy, without):
    with pytest.raises(RaceError):
        run(cases["foreach"], policy, without)


def test_a_copy_in_waits_for_the_copy_out_whose_block_it_takes(cases):
    with pytest.raises(RaceError):
        run(cases["checkpointing"], "g10", ("hand_over", IN))


def test_small_tensors_stay_where_larger_ones_make_room(cases):
    case = cases["checkpointing"]
    budget, bar = case.budget(), max(tensor.size_bytes for tensor in case.script.trace.tensors) // 128
    small = []
    for least in (0, bar):
        memory, loop = ModelMemory(), case.step()
        memory.least_bytes = least
        executor = Executor(case.script, budget, under(case, "pressure", budget), memory, undo=False)
        memory.account = executor.account
        with executor:
            for _ in range(STEPS + 1):
                with executor.step():
                    loop()
        assert same(values(loop), case.plain)
        small.append(sum(len(copies) for size, copies in memory._idle.items() if size < bar))
    assert small[1] < small[0] / 2
