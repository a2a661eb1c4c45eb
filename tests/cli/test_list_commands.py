import json

import pytest
import yaml

from g10sim.config.flash_ssd import FlashSsdSpec
from g10sim.config.presets import load_ssd, load_system, ssd_names, system_names
from g10sim.policies.interface.registry import available


def test_systems_are_listed_and_shown_with_their_sources(g10sim):
    ended = g10sim("system")
    assert ended.code == 0
    for name in system_names():
        assert name in ended.out
    shown = g10sim("system", "a100-40g-pcie3-znand")
    assert load_system(yaml.safe_load(shown.out)) == load_system("a100-40g-pcie3-znand")


def test_ssds_are_listed_and_shown_with_their_sources(g10sim):
    listed = g10sim("system").out
    for name in ssd_names():
        assert name in listed
        assert load_ssd(name).description in listed
    shown = yaml.safe_load(g10sim("system", "samsung-sz985-800gb").out)
    named = load_system({"preset": "a100-40g-pcie3-znand", "ssd": {"preset": "samsung-sz985-800gb"}})
    assert shown["name"] == "samsung-sz985-800gb"
    assert FlashSsdSpec.model_validate(shown["ssd"]) == named.ssd
    assert shown["sources"].items() <= named.sources.items()
    assert "tPROG 100 us" in shown["sources"]["ssd.program"]


def test_policies_are_listed_with_label_and_paper(g10sim):
    ended = g10sim("policies")
    assert (ended.code, "\\n" in ended.out) == (0, False)
    for name, policy in available().items():
        for text in (name, policy.label, policy.paper):
            assert text in ended.out


def test_a_policy_is_shown_with_its_parameters(g10sim, here):
    lines = g10sim("policies", "deepum").out.splitlines()
    assert lines[0].startswith("deepum: DeepUM+ (Jung et al., DeepUM, ASPLOS 2023")
    assert "look_ahead = 8" in lines
    (here / "alone.py").write_text(
        "from g10sim.policies.interface import Policy\n"
        "class Mine(Policy):\n    name = 'mine'\n    'Mine alone.'\n"
    )
    assert g10sim("policies", "alone:Mine").out.splitlines()[-1] == "no parameters"
    misspelt = g10sim("policies", "deepumm")
    assert misspelt.code == 2
    assert "did you mean 'deepum'?" in misspelt.err


def test_lists_are_json_on_demand(g10sim):
    systems = json.loads(g10sim("system", "--json").out)
    assert list(systems) == [*system_names(), *ssd_names()]
    name = "a100-40g-pcie3-znand"
    assert json.loads(g10sim("system", name, "--json").out) == systems[name]
    assert load_system(systems[name]) == load_system(name)
    policies = {one["name"]: one for one in json.loads(g10sim("policies", "--json").out)}
    assert list(policies) == list(available())
    assert policies["deepum"]["parameters"]["look_ahead"] == 8
    assert json.loads(g10sim("policies", "deepum", "--json").out) == policies["deepum"]


def test_sizes_are_short(g10sim):
    assert "SSD 7.68 TB" in g10sim("system").out


def test_an_unknown_system(g10sim):
    ended = g10sim("system", "h100-80g-pcie5-nvmee")
    assert ended.code == 2
    assert "did you mean 'h100-80g-pcie5-nvme'?" in ended.err
    misspelt = g10sim("system", "samsung-990-pro")
    assert misspelt.code == 2
    assert "did you mean 'samsung-990-pro-2tb'?" in misspelt.err
    assert "h100-80g-pcie5-nvme" in misspelt.err


@pytest.mark.parametrize(
    "command", [(), ("run",), ("size",), ("validate",), ("policies",), ("system",), ("trace",), ("plan",)]
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
