"""Cells of earlier runs: beside others, and with one thing changed."""

from dataclasses import replace

from g10sim.config.document import Document
from g10sim.experiment.expand import expand
from g10sim.experiment.run import run_experiment
from g10sim.experiment.stored_cells import WhatIf, changes_of, open_cell, what_if

SWEPT = "system.pcie.bandwidth_bytes_per_s"


def test_changes_double_one_part_of_the_machine_or_name_another_policy(config):
    cell = expand(Document(config, "test")).cells[1]
    found = changes_of(cell)
    machine, policies = list(found.items())[:4], list(found.items())[4:]
    gpu, host, link, drive = (changed.system for _, changed in machine)
    assert [name.removeprefix("twice the ") for name, _ in machine] == [
        "GPU memory",
        "host memory",
        "PCIe bandwidth",
        "SSD bandwidth",
    ]
    before = cell.system
    assert (gpu.gpu.memory, gpu.host, gpu.pcie, gpu.ssd) == (16 << 20, before.host, before.pcie, before.ssd)
    assert (host.host.memory, host.gpu) == (8 << 20, before.gpu)
    assert (link.pcie.inward, link.pcie.outward) == (2 * before.pcie.inward, 2 * before.pcie.outward)
    assert (drive.ssd.read_bandwidth, drive.ssd.latency) == (
        2 * before.ssd.read_bandwidth,
        before.ssd.latency,
    )
    assert all(changed.system is before for _, changed in policies)
    names = [changed.policy["name"] for _, changed in policies]
    assert {"deepum", "g10", "pressure"} <= set(names)
    # Its own, one without limit, and one that needs a plan.
    assert not {"base_uvm", "ideal", "replay"} & set(names)


def test_what_one_change_gives_is_what_a_run_with_it_gives(config, tmp_path):
    config["sweep"] = {"system.pcie.bandwidth": ["8 GB/s", "16 GB/s"]}
    rows = run_experiment(Document(config, "test"), output=tmp_path / "out").rows
    opened = open_cell(tmp_path / "out", 1)
    assert sorted(opened.alike["policy"]) == ["deepum", "ideal"]
    assert set(opened.alike[SWEPT]) == {8_000_000_000}
    smaller = opened.system.gpu.model_copy(update={"memory": 1 << 20})
    changes = {
        "a faster link": changes_of(opened.cell)["twice the PCIe bandwidth"],
        "too little memory": replace(opened.cell, system=opened.system.model_copy(update={"gpu": smaller})),
    }
    numbers = [(row["performance"], row["exec_ms"]) for row in (rows[1], rows[4])]
    assert list(what_if(opened, changes=changes)) == [
        WhatIf("nothing changed", *numbers[0]),
        WhatIf("a faster link", *numbers[1]),
        WhatIf("too little memory", None, None),
    ]
