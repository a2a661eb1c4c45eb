"""The flash model against tables measured with MQSim, and the page that shows them."""

from pathlib import Path

import pytest

from g10sim.errors import ConfigError
from tools.ssd_validation import compare

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def comparisons(reference):
    return compare(reference / "systems" / "mqsim")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "table",
    ["parallelism_sweep", "seq_read_write", "mixed_read_write", "gc_steady_state", "gc_tensor_mix"],
)
def test_rows_agree_within_their_limits(comparisons, table):
    rows = [one for one in comparisons if one.table == table]
    assert len(rows) > 20
    assert [(one.row, one.quantity, one.error) for one in rows if not one.agrees] == []


@pytest.mark.nightly
def test_every_row_is_compared(comparisons):
    rows = {table: len({one.row for one in comparisons if one.table == table}) for table in
            {one.table for one in comparisons}}  # fmt: skip
    assert rows == {
        "parallelism_sweep": 67,
        "seq_read_write": 60,
        "mixed_read_write": 64,
        "gc_steady_state": 35,
        "gc_tensor_mix": 12,
    }


@pytest.mark.nightly
def test_data_that_dies_as_a_whole_is_never_copied(comparisons):
    whole = ("A seq", "B seq", "ext16M", "ext32M", "ext64M", "ext128M", "ext256M", "periodic")
    rows = [
        one
        for one in comparisons
        if one.quantity == "write amplification"
        and any(word in one.row for word in whole)
        and not one.row.startswith("B ext16M")
    ]
    assert len(rows) == 14
    assert {one.modelled for one in rows} == {1.0}


@pytest.mark.nightly
def test_concurrent_reads_keep_their_rate(comparisons):
    deep = [one for one in comparisons if one.table == "mixed_read_write" and one.limit is not None]
    reads = [one for one in deep if one.quantity == "read GB/s"]
    assert len(reads) == 4
    assert all(one.modelled == pytest.approx(one.measured, rel=0.05) for one in reads)


@pytest.mark.nightly
def test_the_page_shows_what_the_model_says_now(comparisons, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "generate"))
    import flash_page

    page = flash_page.render(comparisons)
    assert page == (ROOT / "docs" / "flash.md").read_text(encoding="utf-8"), "outdated: docs/generate flash"
    assert sum(line.startswith("| ") for line in page.splitlines()) > 240


def test_a_missing_table_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"parallelism_sweep.csv: found no file; allowed: a directory of"):
        compare(tmp_path)
