"""Columns of results: which tell cells apart, and their values as quantities, numbers or texts."""

from dataclasses import asdict

import pandas as pd

from g10sim.looks import Look
from g10sim.results.legends import ATTRIBUTE, designs
from g10sim.results.swept import as_number, differing_keys, values_of


def test_columns_tell_cells_apart_if_they_have_several_values():
    rows = {"cell": [0, 1], "trace": ["a", "a"], "policy": ["g10", "deepum"]}
    swept = {"gpu.memory": ["1 GiB", None], "host.memory": ["1 GiB", "1 GiB"]}
    assert differing_keys(pd.DataFrame(rows | swept | {"seed": [0, 0]})) == ("policy", "gpu.memory")


def test_numbers_are_in_order_and_have_no_unit():
    found = values_of(pd.Series([4, 1, 2.5, 1, None]), "look_ahead")
    assert found.texts == {1: "1", 2.5: "2.5", 4: "4"}
    assert list(found.numbers) == [1, 2.5, 4]
    assert (found.label, found.full_text(4)) == ("look_ahead", "4")


def test_quantities_are_numbers_in_the_unit_of_the_largest():
    found = values_of(pd.Series(["16 GiB", "512 MiB"]), "gpu.memory")
    assert dict(found.numbers) == {"512 MiB": 0.5, "16 GiB": 16}
    assert list(found.numbers) == ["512 MiB", "16 GiB"]
    assert (found.label, found.full_text("512 MiB")) == ("gpu.memory (GiB)", "0.5 GiB")


def test_other_texts_stay_as_they_appear():
    found = values_of(pd.Series(["true", "a", "16 GiB"]), "mode")
    assert dict(found.texts) == {"true": "true", "a": "a", "16 GiB": "16 GiB"}
    assert (found.numbers, found.label) == ({}, "mode")
    assert values_of(pd.Series([True, False]), "eager").numbers == {}


def test_of_mappings_the_entries_that_differ_are_shown():
    one = values_of(pd.Series(['{"a": {"b": "2 GiB"}, "c": 1}', '{"a": {"b": "1 GiB"}, "c": 1}']), "host")
    assert (one.name, list(one.numbers.values()), one.unit) == ("host.a.b", [1, 2], "GiB")
    two = values_of(pd.Series(['{"a": 1, "c": 3}', '{"a": 2, "c": 4}', '{"a": 5, "c": 5}']), "host")
    assert (two.name, list(two.texts.values())) == ("host: a, c", ["1, 3", "2, 4", "5"])


def test_policies_that_cannot_be_loaded_look_as_results_say():
    results = pd.DataFrame({"policy": ["mine:Own(a=1)", "mine:Other", "g10"]})
    own = asdict(Look("#123456", label="Own design"))
    results.attrs[ATTRIBUTE] = {"mine:Own": own, "mine:Other": {"colours": "many"}}
    found = designs(results)
    assert (found["mine:Own(a=1)"].title, found["mine:Own(a=1)"].look) == ("Own design(a=1)", Look(**own))
    assert found["mine:Other"].label == "Other"
    assert found["g10"].label == "G10"


def test_quantities_are_columns_named_by_their_unit():
    column, amount = as_number("system.host.memory", "16 GiB")
    assert (column, str(amount)) == ("system.host.memory_bytes", "17179869184")
    assert as_number("ssd.read_latency", "20 us") == ("ssd.read_latency_s", 2e-05)
    assert as_number("system.gpu.clock", "fast") is None
