import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g10sim.config.document import load_document, merge, parse_document, parse_value
from g10sim.errors import ConfigError


def parse(text):
    return parse_document(text, "run.yaml").data


def test_booleans_and_numbers_follow_yaml_1_2():
    data = parse(
        "a: yes\nb: on\nc: 1:30\nd: 0o17\ne: 1e3\nf: 010\ng: true\nh: ~\ni:\nj: 0x1F\nk: -.inf\nl: 1_000"
    )
    assert data == {
        "a": "yes",
        "b": "on",
        "c": "1:30",
        "d": 15,
        "e": 1000.0,
        "f": 10,
        "g": True,
        "h": None,
        "i": None,
        "j": 31,
        "k": float("-inf"),
        "l": "1_000",
    }


def test_a_key_twice_is_refused_with_both_lines():
    with pytest.raises(ConfigError, match=r"run.yaml:3: host.memory: found twice \(first on line 2\)"):
        parse("host:\n  memory: 1 GiB\n  memory: 2 GiB\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1, 2", r"run.yaml:\d+: .*allowed: valid YAML"),
        ("- 1\n- 2\n", r"run.yaml: found a list; allowed: a mapping"),
        ("", r"run.yaml: found nothing; allowed: a mapping"),
        ("just text", r"run.yaml: found the text 'just text'; allowed: a mapping"),
        ("a: 1\n---\nb: 2\n", r"run.yaml:\d: found a second document; allowed: one"),
        ("a: !!set {b: 1}\n", r"run.yaml:1: a: found the tag .*allowed: plain YAML values"),
        ("a: !mine [b]\n", r"run.yaml:1: a: found the tag .*allowed: plain YAML values"),
        ("!mine a: b\n", r"run.yaml:1: a: found the tag .*allowed: plain YAML values"),
        ("a: !!python/object:os.system x\n", r"run.yaml:1: a: found the tag .*allowed: plain YAML values"),
        ("? [1, 2]\n: 3\n", r"run.yaml:1: key: found a key that is no text"),
        ("a: &x [*x]\n", r"run.yaml:1: a.0: found an alias to itself"),
        ("a: \x07\n", r"run.yaml: .*allowed: valid YAML"),
    ],
)
def test_bad_yaml_is_one_line_naming_the_place(text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_every_key_knows_its_line(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("system:\n  host:\n    memory: 1 GiB\npolicies:\n  - ideal\n  - base_uvm\n")
    document = load_document(path)
    assert document.place(("system", "host", "memory")) == f"{path}:3"
    assert document.place(("policies", 1)) == f"{path}:6"
    assert document.place(("system", "host", "unknown")) == f"{path}:2"


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"missing.yaml: cannot be read: No such file"):
        load_document(tmp_path / "missing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary.yaml: found bytes that are no UTF-8 text"):
        load_document(tmp_path / "binary.yaml")


def test_aliases_are_copies_of_their_anchor():
    assert parse("a: &x {b: 1}\nc: *x\n") == {"a": {"b": 1}, "c": {"b": 1}}


text = st.text(st.characters(categories=("L", "N", "P", "S", "Zs"), max_codepoint=0xD7FF))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner) | st.dictionaries(text, inner),
    max_leaves=10,
)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(text, plain))
@pytest.mark.slow
def test_what_json_writes_is_read_as_it_was(data):
    assert parse(json.dumps(data)) == data


@settings(deadline=None, max_examples=50)
@given(st.text())
def test_any_text_is_read_or_refused_as_a_config_error(text):
    plain_types = (type(None), bool, int, float, str, list, dict)
    try:
        value = parse_value(text, "--set x")
    except ConfigError as error:
        value = str(error)
        plain_types = (str,)
    assert isinstance(value, plain_types)


def test_a_number_too_long_to_read_is_refused():
    with pytest.raises(ConfigError, match=r"run.yaml:1: a: found a number of 5000 characters"):
        parse("a: " + "9" * 5000)


def test_merging_replaces_lists_and_values_and_joins_mappings():
    assert merge({"a": {"b": 1, "c": [1]}, "d": 2}, {"a": {"c": [2]}, "d": {"e": 3}}) == {
        "a": {"b": 1, "c": [2]},
        "d": {"e": 3},
    }
