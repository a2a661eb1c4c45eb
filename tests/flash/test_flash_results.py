"""Write amplification, wear and life in the results, and the figures of them."""

import math

import pytest
from drives import drive, with_drive
from matplotlib.figure import Figure

import g10sim
from g10sim import plots
from g10sim.config.tiers import FlashTierSpec
from g10sim.errors import ConfigError
from g10sim.plots.registry import ENTRIES, paper_figures
from g10sim.records import FlashRecord, IterationRecord
from g10sim.results.columns import BOUND, CPU, FLASH, metric_columns
from g10sim.results.summary import flash_metrics
from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain

YEAR = 365 * 86_400


def iteration(flash, seconds=1):
    """An iteration of so many seconds on a machine with a clock of 1 GHz."""
    cycles = seconds * 10**9
    zeros = dict.fromkeys(
        ("compute_cycles", "overlap_cycles", "in_flight_cycles", "page_faults", "peak_gpu_bytes"), 0
    )
    traffic = dict.fromkeys(
        ("ssd_to_gpu_bytes", "gpu_to_ssd_bytes", "host_to_gpu_bytes", "gpu_to_host_bytes"), 0
    )
    return IterationRecord(
        0, 0, 0, 0, cycles, ideal_cycles=cycles, stalls=(), **zeros,
        traffic=traffic, peaks={"peak_host_bytes": 0}, flash=flash,
    )  # fmt: skip


def test_life_by_hand():
    spec = drive(drives=2)  # twice 100 superblocks of 64 kB, three quarters of it offered
    system = with_drive(spec)
    metrics = flash_metrics(iteration(FlashRecord(0, 1000, 500, 500, 64_000, 4000, 6000), seconds=2), system)
    assert tuple(metrics) == FLASH.names
    assert metrics["ssd_flash_written_bytes"] == 2000
    assert metrics["ssd_write_amplification"] == 2
    assert metrics["ssd_run_write_amplification"] == 1.5
    assert metrics["ssd_erased_bytes"] == 64_000
    assert metrics["ssd_written_bytes_per_year"] == 500 * YEAR
    assert metrics["ssd_drive_writes_per_day"] == pytest.approx(500 * 86_400 / 9_600_000)
    assert metrics["ssd_rated_drive_writes_per_day"] == pytest.approx(2 * 10**9 / 9_600_000 / (5 * 365))
    assert metrics["ssd_years_to_rated_cycles"] == pytest.approx(1000 * 12_800_000 / (1000 * YEAR))
    assert metrics["ssd_years_to_rated_writes"] == pytest.approx(2 * 10**9 / (500 * YEAR))


def test_a_drive_that_nobody_writes_to_lasts_for_ever():
    metrics = flash_metrics(iteration(FlashRecord(1, 0, 0, 0, 0, 0, 0)), with_drive(drive()))
    assert metrics["ssd_write_amplification"] == 1
    assert metrics["ssd_years_to_rated_cycles"] == metrics["ssd_years_to_rated_writes"] == math.inf


def test_of_two_drives_the_slower_tier_counts():
    offered = {"blocks": 400, "rating": {"cycles": 1000, "written": "9 GB", "years": 5}}
    first = FlashTierSpec(name="first", kind="ssd", **drive(**offered).model_dump(mode="json"))
    system = with_drive(drive()).model_copy(update={"tiers": ("host", first, "ssd")})
    metrics = flash_metrics(iteration(FlashRecord(0, 1000, 0, 0, 0, 1000, 1000)), system)
    assert metrics["ssd_years_to_rated_writes"] == pytest.approx(10**9 / (1000 * YEAR))
    assert metrics["ssd_drive_writes_per_day"] == pytest.approx(1000 * 86_400 / 4_800_000)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """Results of a small run on a drive that is nearly full, with and without trim, and with streams."""
    place = tmp_path_factory.mktemp("flash")
    save_trace(chain(8), place / "chain.g10t")

    def run(name, ssd, sweep):
        config = {
            "name": name,
            "workload": {"trace": str(place / "chain.g10t")},
            "system": {
                "preset": "a100-40g-pcie3-znand",
                "gpu": {"memory": "8 MiB"},
                "host": {"memory": "0 GiB"},
                "ssd": ssd,
            },
            "policies": ["ideal", "base_uvm", "g10"],
            "sweep": sweep,
        }
        return g10sim.run(config, output=place / name)

    full = {"preset": "samsung-sz985-800gb", "occupied": 0.9, "condition": "random"}
    knowledge = {"system.ssd.trim": [False, True], "system.ssd.streams": [1, 2]}
    outcomes = {
        "flash_amplification": run("flash_amplification", full, knowledge),
        "flash_endurance": run(
            "flash_endurance",
            {"preset": "samsung-sz985-800gb"},
            {"system.ssd": [{"preset": "samsung-sz985-800gb"}, {"preset": "samsung-990-pro-2tb"}]},
        ),
        "flash_bandwidth": run(
            "flash_bandwidth", {"preset": "samsung-sz985-800gb"}, {"system.ssd.drives": [1, 2, 8]}
        ),
        "link": run(
            "link", {"read_bandwidth": "3 GB/s"}, {"system.ssd.write_bandwidth": ["1 GB/s", "2 GB/s"]}
        ),
    }
    return place, outcomes


def test_columns_of_flash_are_there_with_flash_only(experiment):
    place, _ = experiment
    flash, link = (g10sim.read_results(place / name) for name in ("flash_amplification", "link"))
    assert list(flash.columns)[-len(FLASH.names) :] == list(FLASH.names)
    last = [*metric_columns(), *BOUND.names, *CPU.names]
    assert list(link.columns)[-len(last) :] == last
    ran = flash[flash.policy != "ideal"]
    assert set(flash.status) == {"ok"}
    assert (ran.ssd_written_bytes == ran.gpu_to_ssd_bytes).all()
    assert (ran.ssd_written_bytes > 0).all()
    assert flash[flash.policy == "ideal"][list(FLASH.names)].isna().all(axis=None)


@pytest.mark.parametrize("name", ["flash_amplification", "flash_endurance", "flash_bandwidth"])
def test_figures_show_every_cell(experiment, name):
    place, _ = experiment
    figure = plots.draw(name, place / name)
    assert isinstance(figure, Figure)
    assert name in ENTRIES.keys() - paper_figures()
    rows = g10sim.read_results(place / name)
    cells = int((rows.policy != "ideal").sum())
    (axes,) = figure.axes
    bars = [patch for patch in axes.patches if patch.get_width() < 1]
    points = [x for line in axes.lines if line.get_marker() in ("s", "o") for x in line.get_xdata()]
    assert len(bars) + len(points) == cells


@pytest.mark.parametrize("name", ["flash_amplification", "flash_endurance", "flash_bandwidth"])
def test_figures_say_what_they_need(experiment, name):
    place, _ = experiment
    with pytest.raises(ConfigError, match=r"results: found no column 'system.ssd.*allowed: results of a run"):
        plots.draw(name, place / "link", where={"system.ssd.write_bandwidth": "1 GB/s"})
    with pytest.raises(ConfigError, match=r"2 values of system\.ssd\.write_bandwidth \(1 GB/s, 2 GB/s\)"):
        plots.draw(name, place / "link")


@pytest.mark.parametrize("column", FLASH.names)
def test_every_column_is_defined(column):
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    assert f"| `{column}` |" in page
