"""Foreign text in messages, on terminals and in spreadsheets."""

import csv

import pytest

from g10sim.cli.output import say, show_table, warn
from g10sim.errors import ConfigError, shown
from g10sim.files import inert, write_csv

HOSTILE = "a\x1b]0;title\x07\x1b[2J\u202eb"


def test_a_terminal_gets_no_controls(capsys):
    say(HOSTILE)
    warn(HOSTILE)
    show_table(("name",), ("figure",), [(HOSTILE, HOSTILE)], title=HOSTILE)
    written = capsys.readouterr()
    for text in (written.out, written.err):
        assert text.replace("\n", "").isprintable()
        assert r"\x1b[2J" in text


def test_messages_have_one_line_of_bounded_length():
    text = str(ConfigError(f"run.yaml: found {'x' * 10**6}\n; allowed: less{HOSTILE}"))
    assert text.startswith("run.yaml: found xxx")
    assert r"; allowed: less" in text
    assert text.isprintable()
    assert len(text) < 2000


@pytest.mark.parametrize("value", [10**5000, [[[0] * 100]], "x" * 100], ids=["digits", "lists", "text"])
def test_whatever_was_found_is_shown_in_a_few_characters(value):
    assert 0 < len(shown(value)) <= 60


@pytest.mark.parametrize(
    ("found", "written"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-x", "'-x"),
        ("+1+1", "'+1+1"),
        ("\t=1", "\\t=1"),
        ("-0.5", "-0.5"),
        ("+1e3", "+1e3"),
        ("-inf", "'-inf"),
        (-0.5, -0.5),
        ("bert-base", "bert-base"),
        (HOSTILE, r"a\x1b]0;title\x07\x1b[2J\u202eb"),
    ],
)
def test_no_cell_of_a_spreadsheet_is_a_formula(found, written):
    assert inert(found) == written


def test_tables_quote_formulas(tmp_path):
    write_csv(tmp_path / "a.csv", ["=key", "n"], [{"=key": "=1+1", "n": -2.5}])
    with (tmp_path / "a.csv").open() as file:
        assert list(csv.reader(file)) == [["'=key", "n"], ["'=1+1", "-2.5"]]
