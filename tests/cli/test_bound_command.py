import pytest
import yaml

from g10sim.analysis.bound.bound import iteration_bound
from g10sim.config.presets import load_system
from g10sim.results.bounds import bound_machine
from g10sim.trace.format import load_trace, save_trace
from g10sim.trace.synthetic import chain


def write_system(path, memory):
    system = load_system({"preset": "a100-40g-pcie3-znand", "gpu": {"memory": memory}})
    path.write_text(yaml.safe_dump(system.model_dump(mode="json")), encoding="utf-8")


@pytest.fixture
def inputs(here):
    save_trace(chain(12, activation_bytes=1 << 26), here / "chain.g10t")
    write_system(here / "small.yaml", "512 MiB")
    write_system(here / "none.yaml", "64 MiB")
    return "chain.g10t", "--system", "small.yaml"


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ((), {}),
        (("--lp",), {"checkpoints": 40}),
        (("--lp", "--steady", "--checkpoints", "9"), {"checkpoints": 9, "steady": True}),
        (("--recompute",), {"recompute": True}),
    ],
)
def test_the_bound_is_shown_with_its_resources(g10sim, inputs, options, arguments):
    ended = g10sim("bound", *inputs, *options)
    assert ended.code == 0
    found = iteration_bound(load_trace("chain.g10t"), bound_machine(load_system("small.yaml")), **arguments)
    assert f"{found.cycles:,}" in ended.out
    assert found.method in ended.out
    assert f"due to {found.resource}." in ended.out
    assert "GPU memory" in ended.out


def test_a_trace_that_fits_has_nothing_to_wait_for(g10sim, inputs):
    ended = g10sim("bound", "chain.g10t", "--system", "a100-40g-pcie3-znand", "--steady")
    assert ended.code == 0
    assert "the time of the kernels" in ended.out
    assert "resource" not in ended.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gone.g10t", "--system", "small.yaml"), "gone.g10t"),
        (("chain.g10t", "--system", "a100-40g-pcie3-znan"), "did you mean 'a100-40g-pcie3-znand'?"),
        (("chain.g10t", "--system", "small.yaml", "--lp", "--checkpoints", "0"), "--checkpoints"),
        (("chain.g10t",), "--system"),
        (("chain.g10t", "--system", "none.yaml"), "working set of"),
    ],
)
def test_bad_input_is_one_line(g10sim, inputs, arguments, words):
    ended = g10sim("bound", *arguments)
    assert ended.code == 2
    assert words in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""
