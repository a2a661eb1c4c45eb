"""Parameters are data: every value that a declaration excludes is refused in one line."""

import inspect
import math
import pickle
from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

from g10sim.errors import ConfigError
from g10sim.policies.designs.deepum import DeepUm
from g10sim.policies.interface.parameters import Count, Declared, _size, allowed_text, parameter
from g10sim.policies.interface.policy import Policy
from g10sim.policies.interface.registry import available, create

DECLARED = {name: policy for name, policy in available().items() if policy.parameter_names()}
PARAMETERS = [(name, key) for name, policy in DECLARED.items() for key in policy.parameter_names()]


def refused_values(schema):
    """Values that a JSON schema excludes, on both sides of its bounds and of other types."""
    yield set()
    kind = schema.get("type")
    if "anyOf" in schema:
        for option in schema["anyOf"]:
            yield from refused_values(option)
    elif "enum" in schema:
        yield from ("no such choice", 3)
    elif kind == "boolean":
        yield from (1, "yes")
    elif kind == "string":
        yield from (3, True)
    elif kind in ("integer", "number"):
        yield from (True, "1", math.nan)
        outside = (("minimum", -1), ("maximum", 1), ("exclusiveMaximum", 0))
        yield from (schema[bound] + step for bound, step in outside if bound in schema)
    if kind == "integer":
        yield 1.5


def test_every_shipped_policy_with_parameters_declares_them():
    assert all(issubclass(policy, Declared) for policy in DECLARED.values())


@pytest.mark.parametrize(("name", "key"), PARAMETERS)
def test_values_outside_a_declaration_are_refused_in_one_line(name, key):
    schema = DECLARED[name].parameter_schemas()[key]
    for value in refused_values(schema):
        with pytest.raises(ConfigError) as error:
            create({"name": name, key: value})
        text = str(error.value)
        assert text.startswith(f"policy '{name}': {key}: found "), text
        assert "; allowed: " in text, text
        assert "\n" not in text, text


@pytest.mark.parametrize(("name", "key"), PARAMETERS)
def test_every_parameter_is_described_and_its_values_are_in_words(name, key):
    policy = DECLARED[name]
    assert policy.parameter_descriptions()[key].endswith(".")
    assert allowed_text(policy.parameter_schemas()[key])
    assert "published" in policy.parameter_schemas()[key]


class Base(Declared, Policy):
    """Declares two parameters."""

    name = "base"

    depth: Count = parameter(default=2)
    """Depth."""
    width: int = parameter(ge=1)
    """Width."""


class Derived(Base):
    """Another default, and one parameter more."""

    depth: Count = parameter(default=5)
    """Another depth."""
    height: int = parameter(default=0)
    """Height."""


class ByHand(DeepUm):
    """Has a constructor of its own."""

    def __init__(self, *, far: bool = False) -> None:
        super().__init__(look_ahead=64 if far else 8)
        self.far = far


def test_declarations_are_inherited_and_may_be_changed():
    assert Derived(width=3).parameters() == {"depth": 5, "width": 3, "height": 0}
    assert Derived.parameter_descriptions() == {
        "depth": "Another depth.",
        "width": "Width.",
        "height": "Height.",
    }
    assert Base(width=1).parameters() == {"depth": 2, "width": 1}
    assert inspect.signature(Base).parameters["depth"].default == 2
    assert inspect.signature(Base).parameters["width"].default is inspect.Parameter.empty


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "width: found nothing; allowed: a whole number from 1"),
        ({"width": 0}, "width: found 0; allowed: a whole number from 1"),
        ({"width": "3"}, "width: found '3'; allowed: a whole number from 1"),
        ({"width": 3.0}, "width: found 3.0; allowed: a whole number from 1"),
        (
            {"width": 1, "dept": 3},
            "dept: found an unknown parameter (did you mean 'depth'?); allowed: depth, width",
        ),
    ],
)
def test_a_refusal_names_the_parameter(given, message):
    with pytest.raises(ValueError, match="found") as error:
        Base(**given)
    assert str(error.value) == message


def test_a_declaration_takes_constraints_and_a_default():
    class Late(Declared, Policy):
        """Declared here."""

        breadth: int = parameter(default=3, le=4)
        """Breadth."""
        depth: Count = parameter(default=1)
        """Depth."""

    assert Late().parameters() == {"breadth": 3, "depth": 1}
    for given, found in ({"breadth": 5}, "5"), ({"breadth": "3"}, "'3'"), ({"depth": -1}, "-1"):
        with pytest.raises(ValueError, match=f"{next(iter(given))}: found {found}; allowed: "):
            Late(**given)


def test_a_constructor_written_by_hand_keeps_its_own_parameters():
    assert ByHand.parameter_names() == ("far",)
    assert ByHand(far=True).look_ahead == 64


@pytest.mark.parametrize("others", [(), ("tensile", "none")])
def test_a_size_has_a_unit_or_is_one_of_some_words(others):
    size = TypeAdapter(Annotated[str, *_size(*others)])
    for text in ("20 GiB", *others):
        assert size.validate_python(text) == text
    with pytest.raises(ValidationError, match="20 apples"):
        size.validate_python("20 apples")
    also = "".join(f", or {word}" for word in others)
    assert size.json_schema() == {"type": "string", "allowed": f"a size such as 20 GiB{also}"}


@pytest.mark.parametrize("name", [name for name in DECLARED if name != "replay"])
def test_parameters_survive_pickling(name):
    policy = create(name)
    assert pickle.loads(pickle.dumps(policy)).parameters() == policy.parameters()
