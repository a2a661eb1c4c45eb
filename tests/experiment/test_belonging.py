"""Every file of a directory of results belongs to the others, or is refused, in every state of it.

``G10SIM_DAMAGE_CASES`` sets the number of damages, ``G10SIM_SEQUENCES`` that of sequences of runs.
"""

import gzip
import json
import os
import random
import shutil
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import g10sim
from g10sim import plots
from g10sim.config.document import Document
from g10sim.errors import G10SimError
from g10sim.experiment.run import run_experiment
from g10sim.experiment.stored_cells import open_cell
from g10sim.results.reading import reported_kernels

from .changing import InThisProcess

CASES = int(os.environ.get("G10SIM_DAMAGE_CASES", "25"))
RECORD = ["kernels", "migrations", "timeline"]
QUICK = settings(
    max_examples=int(os.environ.get("G10SIM_SEQUENCES", "8")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def run(config, output, stop_after=None, **changes):
    """Run a configuration in this process; Ctrl-C after some cells."""
    seen = []

    def progress(cell, result):
        seen.append(cell.index)
        if len(seen) == stop_after:
            raise KeyboardInterrupt

    try:
        document = Document({**config, **changes}, "")
        return run_experiment(document, output=output, executor=InThisProcess(), progress=progress)
    except KeyboardInterrupt:
        return None


def assert_consistent(directory):
    """Look at every cell as a reader does who opens the files alone, and as g10sim does."""
    results = pd.read_csv(directory / "results.csv")
    path = directory / "kernels.parquet"
    kernels = pd.read_parquet(path) if path.exists() else None
    if kernels is not None:
        assert set(kernels["cell"]) <= set(results["cell"])
    for row in results.to_dict("records"):
        if row["status"] != "ok":
            continue
        opened = open_cell(directory, row["cell"])
        assert (opened.kernels is None) == (kernels is None)
        if kernels is not None:
            for shown in (opened.kernels, reported_kernels(kernels[kernels["cell"] == row["cell"]], row)):
                assert shown["end"].max() - shown["start"].min() == row["exec_cycles"]
        timeline = directory / "timeline" / f"{row['cell']}.json.gz"
        if timeline.exists():
            assert json.loads(gzip.decompress(timeline.read_bytes()))["otherData"]["cell_key"] == key(
                directory, row["cell"]
            )


def key(directory, cell):
    cells = json.loads((directory / "provenance.json").read_text())["cells"]
    return next(entry["key"] for entry in cells if entry["cell"] == cell)


STEPS = st.tuples(
    st.permutations(["ideal", "base_uvm", "deepum"]),
    st.integers(1, 3),
    st.sampled_from([["summary"], ["kernels"], RECORD]),
    st.sampled_from([None, None, 1, 2]),
)


@pytest.mark.slow
@QUICK
@given(st.lists(STEPS, min_size=2, max_size=4))
def test_no_sequence_of_runs_leaves_a_table_of_another(config, tmp_path_factory, steps):
    directory = tmp_path_factory.mktemp("sequence")
    for policies, count, record, stop in steps:
        run(config, directory / "out", stop, policies=policies[:count], record=record)
        assert_consistent(directory / "out")
    shutil.rmtree(directory)


@pytest.mark.slow
def test_a_run_without_tables_removes_those_of_the_run_before(config, tmp_path):
    run(config, tmp_path, policies=["base_uvm"], record=RECORD)
    plots.save(plots.draw("stalls", tmp_path), tmp_path / "figures", "stalls")
    g10sim.write_report(tmp_path)
    mine = tmp_path / "figures" / "mine.png"
    mine.write_bytes(b"drawn by hand")
    run(config, tmp_path, policies=["base_uvm"], record=RECORD)
    assert (tmp_path / "figures" / "stalls.pdf").exists()
    run(config, tmp_path, policies=["deepum"])
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {name for name in left if not name.startswith("cells/")} == {
        *("results.csv", "config.yaml", "timing.csv", "provenance.json", "figures/mine.png", "chain.g10t")
    }
    assert open_cell(tmp_path, 0).kernels is None


def test_a_table_of_another_run_is_refused(config, tmp_path):
    for name, policy in (("one", "base_uvm"), ("two", "deepum")):
        run(config, tmp_path / name, policies=[policy], record=["kernels"])
    shutil.copy(tmp_path / "one" / "kernels.parquet", tmp_path / "two")
    refusal = r"two/kernels.parquet: is damaged, was edited, or belongs to another run; allowed: running the"
    for look in (lambda: g10sim.read_table(tmp_path / "two", "kernels"), lambda: open_cell(tmp_path / "two")):
        with pytest.raises(G10SimError, match=refusal):
            look()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Results with tables, undisturbed."""
    from g10sim.trace.format import save_trace
    from g10sim.trace.synthetic import chain

    directory = tmp_path_factory.mktemp("whole")
    save_trace(chain(8), directory / "chain.g10t")
    system = {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "8 MiB"}, "host": {"memory": "4 MiB"}}
    config = {
        "name": "small",
        "workload": {"trace": str(directory / "chain.g10t")},
        "system": system,
        "policies": ["base_uvm", "deepum"],
        "record": RECORD,
    }
    run(config, directory / "out")
    return config, directory / "out"


def damage(directory, draw):
    """Flip a bit of a file or cut it short, and return its path."""
    path = draw.choice(
        sorted(path for path in directory.rglob("*") if path.is_file() and path.stat().st_size)
    )
    data = bytearray(path.read_bytes())
    place = draw.randrange(len(data))
    if draw.random() < 0.7:
        data[place] ^= 1 << draw.randrange(8)
    else:
        del data[place:]
    path.write_bytes(data)
    return path


def seen(directory):
    """All that readers show of some results, or that they refuse them."""

    def shown(look):
        try:
            return look()
        except G10SimError as error:
            return "refused" if str(error).isprintable() else str(error)

    def opened():
        found = open_cell(directory, 1)
        return repr(found.row), found.kernels.to_csv(), found.migrations.to_csv()

    looks = [lambda: g10sim.read_results(directory).to_csv(), opened]
    looks += [
        lambda name=name: g10sim.read_table(directory, name).to_csv() for name in ("kernels", "migrations")
    ]
    return [shown(look) for look in looks]


def contents(directory):
    names = ("results.csv", "config.yaml", "kernels.parquet", "migrations.parquet", "timeline/1.json.gz")
    return {name: (directory / name).read_bytes() for name in names}


@pytest.mark.nightly
@pytest.mark.slow
def test_damages_are_noticed_or_harmless_and_repaired_by_the_next_run(whole, tmp_path, caplog):
    config, pristine = whole
    out, refused, named = Path(shutil.copytree(pristine, tmp_path / "out")), 0, 0
    run(config, out)
    expected, files = seen(out), contents(out)
    for seed in range(CASES):
        damaged = damage(out, random.Random(f"damage {seed}"))
        for one, right in zip(seen(out), expected, strict=True):
            assert one in (right, "refused"), damaged
            refused += one == "refused"
        caplog.clear()
        outcome = run(config, out)
        if "cells" in damaged.parts and outcome.reused < 2:
            assert f"{damaged}: is damaged, missing or was edited; its cell is run again" in caplog.text
            named += 1
        assert contents(out) == files, damaged
    assert refused > CASES / 10
    assert named > CASES / 10
