"""Finding policies by name, by path, and from installed plug-ins."""

from importlib.metadata import EntryPoint

import pytest

from g10sim.errors import ConfigError, PolicyError
from g10sim.policies.designs.base_uvm import BaseUvm
from g10sim.policies.designs.deepum import DeepUm
from g10sim.policies.interface import registry
from g10sim.policies.interface.policy import Policy
from g10sim.policies.interface.registry import available, create, find, register_policy


@pytest.fixture
def names(monkeypatch):
    """A registry of its own, so that tests leave nothing behind."""
    available()
    known = dict(registry._POLICIES)
    monkeypatch.setattr(registry, "_POLICIES", known)
    return known


@pytest.fixture
def plug_ins(monkeypatch):
    """Installs entry points, given as {name: module:Class}."""

    def install(**points):
        found = [EntryPoint(name, value, registry.ENTRY_POINT_GROUP) for name, value in points.items()]
        monkeypatch.setattr(
            registry, "entry_points", lambda group: found if group == "g10sim.policies" else []
        )
        registry._plugins.cache_clear()

    yield install
    registry._plugins.cache_clear()


def refusal(make, *arguments, error=PolicyError):
    with pytest.raises(error) as caught:
        make(*arguments)
    return str(caught.value)


def test_built_in_policies_are_there_with_label_and_paper():
    found = available()
    assert {"ideal", "base_uvm", "deepum", "replay"} <= set(found)
    assert list(found) == sorted(found)
    for name, policy in found.items():
        assert policy.name == name
        assert policy.label
        assert policy.paper
        assert policy.__doc__


def test_policies_are_made_from_names_and_mappings():
    assert isinstance(create("base_uvm"), BaseUvm)
    assert create({"name": "deepum", "look_ahead": 3}).parameters() == {
        "look_ahead": 3,
        "order_file": None,
        "discard": True,
    }


def test_unknown_name_is_answered_with_the_nearest():
    text = refusal(create, "base_uvn")
    assert text.startswith("unknown policy 'base_uvn' (did you mean 'base_uvm'?); allowed: ")
    assert "deepum" in text
    assert text.endswith(", or module:Class")
    assert "did you mean" not in refusal(create, "zzzzzz")


@pytest.mark.parametrize("spec", [{}, {"look_ahead": 3}, {"name": 7}, {"name": None}])
def test_specification_without_a_name_is_refused(spec):
    assert refusal(create, spec, error=ConfigError) == (
        f"policy {spec!r}: found no name; allowed: a mapping with the key 'name'"
    )


def test_unknown_parameter_is_answered_with_the_nearest():
    assert refusal(create, {"name": "deepum", "look_ahed": 3}, error=ConfigError) == (
        "policy 'deepum': unknown parameter 'look_ahed' (did you mean 'look_ahead'?); "
        "allowed: discard, look_ahead, order_file"
    )
    assert refusal(create, {"name": "ideal", "depth": 3}, error=ConfigError) == (
        "policy 'ideal': unknown parameter 'depth'; allowed: no parameters"
    )


def test_refused_and_missing_parameters_name_the_policy():
    said = refusal(create, {"name": "lookahead:Picky", "level": 9}, error=ConfigError)
    assert said.startswith("policy 'lookahead:Picky': level: found 9; allowed: at most 3 (")
    assert "lookahead.py, line " in said
    assert refusal(create, {"name": "deepum", "look_ahead": 0}, error=ConfigError) == (
        "policy 'deepum': look_ahead: found 0; allowed: a whole number from 1"
    )
    assert "plan_file" in refusal(create, "replay", error=ConfigError)


def test_class_is_found_by_module_and_name():
    assert find("lookahead:LookAhead").name == "lookahead"
    assert find("g10sim.policies.designs.deepum:DeepUm") is DeepUm


def test_what_cannot_be_loaded_is_named():
    assert refusal(create, "no_such_module:Thing") == (
        "policy plug-in 'no_such_module:Thing': cannot load no_such_module:Thing: "
        "ModuleNotFoundError: No module named 'no_such_module'"
    )
    assert "AttributeError" in refusal(create, "lookahead:Nothing")


def test_class_that_is_no_policy_is_refused():
    text = refusal(create, "lookahead:NotAPolicy")
    assert text.startswith("policy plug-in 'lookahead:NotAPolicy': found <class 'lookahead.NotAPolicy'>")
    assert text.endswith("; allowed: a subclass of Policy")
    assert "allowed: a subclass of Policy" in refusal(create, "lookahead:Policy.name")


def test_designs_are_found_in_files_and_folders(names):
    registry._modules.cache_clear()
    found = registry._modules()
    assert {"g10sim.policies.designs.deepum", "g10sim.policies.designs.g10.tuned"} <= set(found)
    assert not any("__init__" in module for module in found)


def test_a_policy_that_keeps_a_parameter_elsewhere_or_changes_it_is_refused(names):
    class Elsewhere(Policy):
        """A policy of a test."""

        name = "elsewhere"

        def __init__(self, *, depth=1):
            self.other = depth

    class Changed(Elsewhere):
        """A policy of a test."""

        name = "changed"

        def __init__(self, *, depth=1):
            self.depth = min(depth, 2)

    names |= {"elsewhere": Elsewhere, "changed": Changed}
    for given in ({}, {"depth": 1}):
        assert "parameter 'depth': found no such attribute" in refusal(create, {"name": "elsewhere"} | given)
    assert create({"name": "changed", "depth": 2}).depth == create("changed").depth + 1 == 2
    text = refusal(create, {"name": "changed", "depth": 3})
    assert text.endswith("found 2; allowed: what was given, stored as self.depth")


def test_registered_policy_is_available(names):
    @register_policy
    class Mine(Policy):
        """A policy of a test."""

        name = "mine"

    assert available()["mine"] is Mine
    assert isinstance(create("mine"), Mine)
    assert register_policy(Mine) is Mine


def test_two_policies_of_one_name_are_refused(names):
    class Imitation(Policy):
        """Takes a name that is taken."""

        name = "deepum"

    text = refusal(register_policy, Imitation)
    assert text.startswith("two policies are called 'deepum': g10sim.policies.designs.deepum:DeepUm and ")
    assert text.endswith(":Imitation")


def test_policy_without_a_name_is_refused(names):
    class Nameless(Policy):
        """Has no name."""

    assert refusal(register_policy, Nameless).endswith(":Nameless has no name")


def test_installed_plug_in_is_available(names, plug_ins):
    plug_ins(lookahead="lookahead:LookAhead")
    assert available()["lookahead"].label == "Look-ahead"
    assert create({"name": "lookahead", "depth": 4}).parameters() == {"depth": 4}


def test_metadata_of_installed_packages_are_read_once(plug_ins, monkeypatch):
    plug_ins(lookahead="lookahead:LookAhead")
    reads, read = [], registry.entry_points
    monkeypatch.setattr(registry, "entry_points", lambda group: reads.append(group) or read(group))
    assert find("lookahead") is find("lookahead")
    assert "lookahead" in available()
    assert reads == [registry.ENTRY_POINT_GROUP]


def test_plug_in_that_is_no_policy_or_cannot_be_loaded_is_named(names, plug_ins):
    plug_ins(fake="lookahead:NotAPolicy")
    assert "allowed: a subclass of Policy" in refusal(available)
    plug_ins(gone="no_such_module:Thing")
    assert refusal(available).startswith("policy plug-in 'gone': cannot load no_such_module:Thing: ")
