"""The account of an import, by hand: shares, limits, and what a trace keeps of it."""

from pathlib import Path

import pytest

from g10sim.errors import TraceError
from g10sim.importers.account import Account, Reason, account_of, accounted
from g10sim.trace.format import load_trace, save_trace
from g10sim.trace.model import Kernel, Tensor, TensorKind, Trace

FILE = Path("profile.json")


def trace():
    tensors = (Tensor(0, "x", 512, TensorKind.INPUT, False),)
    return Trace("net", 1, 10**9, tensors, (Kernel(0, "mm", 1000, (0,), ()),))


def account(imported_ns, copies_ns):
    found = Account(imported_ns=imported_ns)
    found.leave_out(Reason.COPIES, copies_ns)
    return found


@pytest.mark.parametrize(
    ("imported_ns", "left_ns", "warnings"), [(100, 0, 0), (99, 1, 0), (98, 2, 1), (80, 20, 1)]
)
def test_above_one_percent_left_out_is_warned_about(imported_ns, left_ns, warnings):
    assert len(list(account(imported_ns, left_ns).warnings())) == warnings


def test_above_twenty_percent_left_out_is_refused_unless_partial():
    found = account(79_000, 21_000)
    with pytest.raises(TraceError, match=r"profile.json: 21.0% of the step's .* copies .*--partial"):
        accounted(trace(), found, FILE, partial=False)
    assert account_of(accounted(trace(), found, FILE, partial=True)).share_left_out == 0.21


def test_time_put_aside_is_told_and_not_judged():
    found = account(60, 0)
    found.put_aside(Reason.OVERLAP, 30)
    found.put_aside(Reason.GAPS, 40)
    assert (found.step_ns, found.share_left_out, list(found.warnings())) == (60, 0, [])
    aside = [(row.part, row.time_ns, row.share) for row in list(found.rows())[2:]]
    assert aside == [("aside: gaps", 40, "40.0% of both"), ("aside: overlap", 30, "")]


@pytest.mark.parametrize(
    ("recorded", "imported", "told"), [(100, 110, 0), (100, 111, 1), (100, 89, 1), (0, 0, 0), (0, 5, 1)]
)
def test_bytes_that_differ_by_more_than_ten_percent_are_told_with_the_cause(recorded, imported, told):
    found = Account()
    found.compare("peak", recorded, imported, "views are not named")
    assert [text.endswith("views are not named") for text in found.warnings()] == [True] * told


def test_a_trace_file_keeps_the_account(tmp_path):
    found = account(990, 10)
    found.compare("peak", 100, 50, "because")
    found.notes.append("two graph launches")
    save_trace(accounted(trace(), found, FILE, partial=False), tmp_path / "trace.g10t")
    assert account_of(load_trace(tmp_path / "trace.g10t")) == found


@pytest.mark.parametrize("text", ["", "{", "[]", '{"imported_ns": "x"}', '{"memory": [3]}'])
def test_an_account_that_is_not_whole_is_none(text):
    whole = trace()
    assert account_of(Trace("net", 1, 10**9, whole.tensors, whole.kernels, {"account": text})) is None
