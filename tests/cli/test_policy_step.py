"""A policy watched kernel by kernel."""

import pytest
from machines import OWN, machine, simulate, trace_of

from g10sim.errors import UnsupportedError
from g10sim.policies.interface.observed import observed
from g10sim.policies.interface.registry import available, create
from g10sim.results.tables import TABLES, records_table
from g10sim.trace.format import save_trace

STEPS = trace_of(
    {"w*": 2, "a": 2, "b": 2, "c": 2},
    [(10_000, "w", "a"), (10_000, "a", "b"), (10_000, "b", "c"), (10_000, "w c", "")],
)

MINE = """
from g10sim.policies.interface import Policy
from g10sim.policies.interface.moves import Evict, Fetch


class Mine(Policy):
    name = "mine"

    def on_kernel_start(self, view):
        return {1: Evict(0, "host"), 2: [Fetch(0)]}.get(view.kernel)
"""


@pytest.fixture
def step(g10sim, here):
    save_trace(STEPS, here / "steps.g10t")
    (here / "mine.py").write_text(MINE)
    return lambda policy, *options: g10sim("policy", "step", "steps.g10t", policy, *options)


def test_a_kernel_is_told_with_answers_moves_and_memory(step):
    ended = step("mine:Mine", "--from", "1", "--count", "2")
    assert (ended.code, ended.err) == (0, "")
    first, second = ended.out.split("iteration 1, kernel 2 ")
    assert first.startswith("iteration 1, kernel 1 (Kernel1): cycles ")
    assert "  uses a, b\n" in first
    assert "  on_kernel_start: evict w to host\n" in first
    assert "  moved: w, 4.00 KiB, the GPU to host memory, evicted as planned, cycles " in first
    assert "  in use at its end: GPU 8.00 KiB of 40.0 GiB, host memory 4.00 KiB, " in first
    assert "  on_kernel_start: fetch w\n" in second
    assert "  moved: w, 4.00 KiB, host memory to the GPU, prefetched, cycles " in second


def test_a_first_kernel_that_there_is_not_is_refused(step):
    ended = step("mine:Mine", "--from", "4")
    assert (ended.code, ended.out) == (2, "")
    assert "--from: found 4; allowed: 0 to 3" in ended.err


def test_a_plan_is_told_in_every_iteration(step):
    out = step("g10", "--gpu-memory", "16 KiB").out
    assert out.count("  plan: free b\n") == 2
    assert out.count("iteration ") == 8


def test_it_waits_for_enter_where_it_is_told_to(step, monkeypatch):
    answers = iter(["", "q"])
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(answers))
    assert step("base_uvm", "--pause").out.count("iteration 0, kernel ") == 2


def test_what_cannot_run_is_said_in_a_line(step):
    refused = step("base_uvm", "--gpu-memory", "4 KiB")
    assert refused.code in (1, 2)
    assert refused.err.count("\n") == 1
    assert "working set" in refused.err
    assert "did you mean 'base_uvm'?" in step("base_uvn").err


@pytest.mark.parametrize("name", [name for name in available() if name not in ("ideal", "replay")])
def test_listening_changes_nothing(name):
    def listen(hook, given, answer):
        heard.add(hook)
        return answer

    heard = set()
    policy = create(name)
    tables = ("kernels", "migrations", "memory")
    try:
        plain = simulate(STEPS, machine(8), policy, OWN, record=tables)
    except UnsupportedError as error:
        pytest.skip(str(error))
    watched = simulate(STEPS, machine(8), observed(policy, listen), OWN, record=tables)
    assert "plan" in heard
    for table in TABLES:
        assert records_table(table, plain).equals(records_table(table, watched))
