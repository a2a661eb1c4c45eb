import pytest
import yaml

from g10sim.config.presets import load_system, system_names
from g10sim.policies.registry import available


def test_systems_are_listed_and_shown_with_their_sources(g10sim):
    ended = g10sim("system")
    assert ended.code == 0
    for name in system_names():
        assert name in ended.out
    shown = g10sim("system", "a100-40g-pcie3-znand")
    assert load_system(yaml.safe_load(shown.out)) == load_system("a100-40g-pcie3-znand")


def test_policies_are_listed_with_label_paper_and_parameters(g10sim):
    ended = g10sim("policies")
    assert ended.code == 0
    for name, policy in available().items():
        for text in (name, policy.label, policy.paper, *policy.parameter_names()):
            assert text in ended.out
    assert "look_ahead = 8" in ended.out


def test_an_unknown_system(g10sim):
    ended = g10sim("system", "h100-80g-pcie5-nvmee")
    assert ended.code == 2
    assert "did you mean 'h100-80g-pcie5-nvme'?" in ended.err


@pytest.mark.parametrize(
    "command", [(), ("run",), ("validate",), ("policies",), ("system",), ("trace",), ("plan",)]
)
def test_every_command_has_help(g10sim, command):
    ended = g10sim(*command, "--help")
    assert ended.code == 0
    assert "Usage: g10sim" in ended.out


def test_a_misspelt_command(g10sim):
    ended = g10sim("runn")
    assert ended.code == 2
    assert ended.err.count("\n") == 1
    assert "run" in ended.err
