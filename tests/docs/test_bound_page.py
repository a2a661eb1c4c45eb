"""The table of bounds says what the bounds are."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "docs" / "bound.md").read_text(encoding="utf-8").splitlines()
TRACES = sorted(path.stem for path in (ROOT / "traces").glob("*.g10t"))


@pytest.fixture
def bound_page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "generate"))
    import bound_page

    yield bound_page
    for name in ("bound_page", "tables"):
        sys.modules.pop(name, None)


def test_every_bundled_trace_is_in_the_table(bound_page):
    for trace in TRACES:
        for host in bound_page.HOSTS:
            assert sum(line.startswith(f"| {trace} | {host} |") for line in LINES) == 1


@pytest.mark.parametrize(
    ("trace", "host"),
    [("bert-base-b192-s512", "128 GiB"), ("bert-base-b512-s128", "32 GiB"), ("vit-base-b1024", "0 GiB")],
)
@pytest.mark.slow
def test_rows_are_current(bound_page, trace, host):
    row = bound_page.row(ROOT / "traces" / f"{trace}.g10t", host)
    assert f"| {' | '.join(row)} |" in LINES, "outdated: python docs/generate bounds"
