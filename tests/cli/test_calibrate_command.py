"""``g10sim calibrate``: machines from measurements, and what is refused."""

import json
import os

import pytest
import yaml

from g10sim.config.presets import load_system

COPIES = ("host_to_device", "device_to_host", "host_to_device_bidirectional", "device_to_host_bidirectional")
GRACE_HOPPER = {"ce": (422, 170, 341, 150), "sm": (410, 380, 290, 289)}  # GB/s


def passed(name, *values):
    texts = [str(value) for value in values]
    return {"name": name, "status": "Passed", "bandwidth_description": "(GB/s)", "bandwidth_matrix": [texts]}


def measured(tests=(), version="v0.9", **also):
    """An output of nvbandwidth with copies of both engines; these tests replace those of their names."""
    given = {test["name"]: test for test in tests}
    copies = [
        passed(f"{copy}_memcpy_{engine}", rate)
        for engine, rates in GRACE_HOPPER.items()
        for copy, rate in zip(COPIES, rates, strict=True)
    ]
    waived = {"name": "device_to_device_memcpy_read_ce", "status": "Waived"}
    latency = passed("host_device_latency_sm", 618)
    cases = {test["name"]: test for test in (*copies, waived, latency)} | given
    known = {"version": version, "git_version": "", "CUDA Runtime Version": 13000, "Driver Version": "580.95"}
    return {"nvbandwidth": {**known, "testcases": list(cases.values()), **also}}


@pytest.fixture
def saved(here):
    """Writes ``grace.json``, of 2 January 2026."""

    def write(output):
        path = here / "grace.json"
        path.write_text(output if isinstance(output, str) else json.dumps(output))
        os.utime(path, (1_767_312_000, 1_767_312_000))
        return path.name

    return write


BASE = "gh200-96g-nvlink-c2c-spec"


@pytest.mark.parametrize(
    ("engine", "rates"), [("copy", (422, 170, 341 + 150)), ("sm", (410, 380, 290 + 289))]
)
def test_a_measured_link_becomes_a_system(g10sim, saved, engine, rates):
    ended = g10sim(
        "calibrate", "links", saved(measured()), "--preset", BASE, "--engine", engine, "-o", "mine.yaml"
    )
    assert (ended.code, ended.err) == (0, "")
    system = load_system("mine.yaml")
    assert (system.name, system.pcie.per_copy) == ("mine", 618_000)
    assert (system.pcie.inward, system.pcie.outward, system.pcie.duplex) == tuple(r * 10**9 for r in rates)
    assert system.gpu == load_system(BASE).gpu
    suffix = {"copy": "ce", "sm": "sm"}[engine]
    told = f"measured, nvbandwidth 0.9, host_to_device_memcpy_{suffix}, grace.json of 2026-01-02"
    assert system.sources["pcie.to_device"] == told
    assert "bidirectional" in system.sources["pcie.duplex"]
    measured_wait, what = system.sources["pcie.per_copy"].split(": ")
    assert measured_wait == "measured, nvbandwidth 0.9, host_device_latency_sm, grace.json of 2026-01-02"
    assert what == "the least that a copy waits"
    assert g10sim("system", "mine.yaml").code == 0


def test_the_system_differs_from_the_preset_of_the_same_numbers_in_the_cost_of_a_copy_alone(g10sim, saved):
    g10sim("calibrate", "links", saved(measured()), "--preset", BASE, "-o", "mine.yaml")
    link, preset = load_system("mine.yaml").pcie, load_system("gh200-96g-measured-ce").pcie
    assert link.model_copy(update={"per_copy": None}) == preset


def test_without_an_output_the_system_is_printed(g10sim, saved):
    ended = g10sim("calibrate", "links", saved(measured()))
    data = yaml.safe_load(ended.out)
    assert (data["preset"], data["name"]) == ("a100-40g-pcie3-znand", "measured")
    assert data["pcie"] == {
        "to_device": "422 GB/s",
        "from_device": "170 GB/s",
        "duplex": "491 GB/s",
        "per_copy": "618 ns",
    }


def test_of_several_gpus_the_median_counts(g10sim, saved):
    several = [
        passed("host_to_device_memcpy_ce", 25.5, "N/A", 24.25, 26),
        passed("device_to_host_memcpy_ce", 27),
    ]
    g10sim("calibrate", "links", saved(measured(several)), "-o", "mine.yaml")
    system = load_system("mine.yaml")
    assert (system.pcie.inward, system.pcie.outward) == (25_500_000_000, 27_000_000_000)
    assert "median of 3 GPUs" in system.sources["pcie.to_device"]
    assert "median" not in system.sources["pcie.from_device"]


def test_directions_that_do_not_disturb_each_other_have_no_limit_together(g10sim, saved):
    undisturbed = [passed(f"{copy}_memcpy_ce", 50) for copy in COPIES]
    g10sim("calibrate", "links", saved(measured(undisturbed)), "-o", "mine.yaml")
    assert load_system("mine.yaml").pcie.duplex is None


def test_a_copy_costs_what_the_preset_says_if_that_is_more_than_an_access(g10sim, saved):
    g10sim("calibrate", "links", saved(measured()), "--preset", "h100-80g-pcie5-nvme", "-o", "mine.yaml")
    system, preset = load_system("mine.yaml"), load_system("h100-80g-pcie5-nvme")
    assert system.pcie.per_copy == preset.pcie.per_copy == 3_400_000
    assert system.sources["pcie.per_copy"] == preset.sources["pcie.per_copy"]


@pytest.mark.parametrize("version", ["v0.5", "v0.6", "v0.7", "v0.8", "v0.9", "v0.10"])
def test_every_version_with_this_form_is_read(g10sim, saved, version):
    assert g10sim("calibrate", "links", saved(measured(version=version))).code == 0


WHOLE = json.dumps(measured())
H2D = "host_to_device_memcpy_ce"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (WHOLE[: len(WHOLE) // 2], "grace.json: found no whole JSON"),
        ("", "grace.json: found no whole JSON"),
        ("[]", "grace.json: found no object with 'nvbandwidth'"),
        ({"traceEvents": []}, "grace.json: found no object with 'nvbandwidth'"),
        (measured(version="v1.0"), "grace.json: nvbandwidth.version: found 'v1.0'; allowed: v0.5, v0.6"),
        (measured(version="v0.4"), "found 'v0.4'; allowed: v0.5, v0.6, v0.7, v0.8, v0.9, v0.10"),
        (measured(testcases=None), "grace.json: nvbandwidth.testcases: found None; allowed: a list"),
        (measured(testcases=[]), f"found no {H2D} that passed (it is not there)"),
        (measured([{"name": H2D, "status": "Waived"}]), "passed (its status is 'Waived'); allowed: a file"),
        (measured([passed(H2D)]), f"{H2D}: found bandwidth_matrix ((),); allowed: one row of"),
        (measured([passed(H2D, "N/A")]), f"{H2D}: found bandwidth_matrix"),
        (measured([passed(H2D, "fast")]), f"{H2D}: found bandwidth_matrix (('fast',),)"),
        (measured([passed(H2D, "nan")]), f"{H2D}: found bandwidth_matrix (('nan',),)"),
        (measured([passed(H2D, -1)]), f"{H2D}: found bandwidth_matrix (('-1',),)"),
        (measured([passed(H2D, 900)]), "grace.json: pcie.duplex: found 491 GB/s; allowed: 900 GB/s"),
        (measured([passed(H2D, 1e9)]), "grace.json: pcie.to_device: found '1000000 TB/s'; allowed: 1 kB"),
    ],
)  # fmt: skip
def test_outputs_that_tell_nothing_are_refused_in_one_line(g10sim, here, saved, output, message):
    ended = g10sim("calibrate", "links", saved(output), "-o", "mine.yaml")
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert "; allowed: " in ended.err
    assert ended.err.count("\n") == 1
    assert [path.name for path in here.iterdir()] == ["grace.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.json",), "nowhere.json: cannot be read: No such file"),
        (("grace.json", "-o", "mine.txt"), "-o: found 'mine.txt'; allowed: a file NAME.yaml"),
        (("grace.json", "--engine", "dma"), "--engine: found 'dma'; allowed: copy, sm"),
        (("grace.json", "--preset", "gh200"), "found unknown system 'gh200'"),
        (
            ("grace.json", "--preset", "one.yaml", "-o", "one.yaml"),
            "-o: found 'one.yaml', the file of --preset",
        ),
    ],
)
def test_bad_arguments_of_links_are_refused(g10sim, here, saved, arguments, message):
    saved(measured())
    ended = g10sim("calibrate", "links", *arguments)
    assert ended.code == 2
    assert message in ended.err
    assert [path.name for path in here.iterdir()] == ["grace.json"]


SLOW, FAST = (14.2, 14.5, 10, 10), (57.06, 57.1, 50, 50)


def several(*gpus):
    """An output with a column for each of these GPUs."""
    rates = zip(COPIES, *gpus, strict=True)
    return measured([passed(f"{copy}_memcpy_ce", *values) for copy, *values in rates])


@pytest.mark.parametrize(
    ("gpus", "rate"), [((SLOW, FAST), "14.2 GB/s"), ((FAST, SLOW, FAST, FAST), "57.06 GB/s")]
)
def test_gpus_that_differ_are_told_and_the_rate_is_one_that_a_gpu_has(g10sim, saved, gpus, rate):
    ended = g10sim("calibrate", "links", saved(several(*gpus)))
    assert ended.code == 0
    assert yaml.safe_load(ended.out)["pcie"]["to_device"] == rate
    assert ended.err.count("GPUs differ by more than 20%") == 4
    assert "14.2 (GPU " in ended.err
    assert "--gpu-index N" in ended.err


def test_one_gpu_can_be_chosen(g10sim, saved):
    file = saved(several(SLOW, FAST))
    ended = g10sim("calibrate", "links", file, "--gpu-index", "1")
    assert (ended.code, ended.err) == (0, "")
    found = yaml.safe_load(ended.out)
    assert found["pcie"] == {"to_device": "57.06 GB/s", "from_device": "57.1 GB/s", "duplex": "100 GB/s"}
    assert "host_to_device_memcpy_ce, GPU 1, " in found["sources"]["pcie.to_device"]
    ended = g10sim("calibrate", "links", file, "--gpu-index", "2")
    assert ended.code == 2
    assert "host_to_device_memcpy_ce: found no GPU 2; allowed: --gpu-index 0, 1" in ended.err


def test_gpus_alike_need_no_choice(g10sim, saved):
    ended = g10sim("calibrate", "links", saved(several(FAST, (50.0, 57.1, 50, 50), (40.0, 57.1, 50, 50))))
    assert "40 (GPU 2)" in ended.err  # 57.06 is more than 1.2 times as much
    ended = g10sim("calibrate", "links", saved(several(FAST, (48.0, 57.1, 50, 50))))
    assert (ended.code, ended.err) == (0, "")


def test_a_gpu_without_a_value_keeps_its_index(g10sim, saved):
    output = several(SLOW, FAST)
    for test in output["nvbandwidth"]["testcases"]:
        if test["name"].endswith("_memcpy_ce"):
            test["bandwidth_matrix"][0][0] = "N/A"
    assert g10sim("calibrate", "links", saved(output), "--gpu-index", "1").code == 0
    ended = g10sim("calibrate", "links", saved(output), "--gpu-index", "0")
    assert "found no GPU 0; allowed: --gpu-index 1" in ended.err
