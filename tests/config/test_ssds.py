"""Descriptions of drives: presets with sources, arrays, and what is refused."""

from fractions import Fraction

import pytest

from g10sim.config.data import data_path
from g10sim.config.document import load_document
from g10sim.config.flash_ssd import FlashSsdSpec
from g10sim.config.presets import load_system, ssd_names
from g10sim.config.ssd import RequestsSpec, SsdSpec, times_rate
from g10sim.errors import ConfigError

SYSTEM = "a100-40g-pcie3-znand"
ZNAND = "samsung-sz985-800gb"
NOT_NUMBERS = {"name", "description", "model", "in_place"}


def with_ssd(**ssd):
    return load_system({"preset": SYSTEM, "ssd": {"preset": ZNAND, **ssd}})


def leaves(data, prefix=""):
    for key, value in data.items():
        if isinstance(value, dict) and key != "sources":
            yield from leaves(value, f"{prefix}{key}.")
        elif key != "sources":
            yield f"{prefix}{key}"


def test_a_system_whose_tiers_have_no_drive_needs_none():
    data = load_system(SYSTEM).model_dump(mode="json", exclude={"ssd", "sources"})
    system = load_system({**data, "tiers": ["host"]})
    assert (system.ssd, [tier.name for tier in system.all_tiers]) == (None, ["host"])


def test_a_rate_times_a_share_is_never_nothing():
    assert [times_rate(rate, Fraction(1, 10)) for rate in (1, 14, 15, 16)] == [1, 1, 2, 2]


@pytest.mark.parametrize("name", ssd_names())
def test_every_number_of_a_drive_has_a_source(name):
    data = load_document(data_path("configs", "ssds", f"{name}.yaml")).data
    assert data["name"] == name
    assert data["description"]
    assert set(leaves(data)) - NOT_NUMBERS == set(data["sources"])
    system = load_system({"preset": SYSTEM, "ssd": {"preset": name}})
    assert isinstance(system.ssd, FlashSsdSpec)
    assert system.sources["ssd.interface"] == data["sources"]["interface"]
    assert load_system(system.model_dump(mode="json")) == system


@pytest.mark.parametrize(
    ("name", "capacity", "read", "write", "daily"),
    [
        (ZNAND, 800e9, 3.2e9, 3.2e9, 30),
        ("intel-optane-p5800x-1.6tb", 1.6e12, 7.2e9, 6.2e9, 100),
        ("samsung-990-pro-2tb", 2e12, 7.45e9, 6.9e9, 1 / 3),
        ("crucial-p1-1tb", 1e12, 2e9, 1.7e9, 0.11),
        ("samsung-pm1743-7.68tb", 7.68e12, 14e9, 6.6e9, 1),
    ],
)
def test_drives_have_the_figures_of_their_data_sheets(name, capacity, read, write, daily):
    ssd = load_system({"preset": SYSTEM, "ssd": {"preset": name}}).ssd
    assert ssd.capacity == pytest.approx(capacity, rel=1e-3)
    assert ssd.read_bandwidth == pytest.approx(read, rel=5e-3)
    assert ssd.write_bandwidth == pytest.approx(write, rel=5e-3)
    assert ssd.rated_daily_writes() == pytest.approx(daily, rel=0.05)


@pytest.mark.parametrize(("name", "rate"), [("samsung-990-pro-2tb", 1.4e9), ("crucial-p1-1tb", 150e6)])
def test_consumer_drives_are_slow_beyond_their_caches(name, rate):
    ssd = load_system({"preset": SYSTEM, "ssd": {"preset": name, "slc": None}}).ssd
    assert ssd.write_bandwidth == pytest.approx(rate, rel=0.05)


def test_an_array_has_the_capacity_and_rates_of_its_drives():
    one, four = with_ssd().ssd, with_ssd(drives=4).ssd
    assert four.read_bandwidth == 4 * one.read_bandwidth
    assert four.write_bandwidth == 4 * one.write_bandwidth
    assert four.capacity == pytest.approx(4 * one.capacity, rel=1e-9)
    assert four.latency == one.latency


def test_lasting_data_of_others_leaves_less_capacity():
    assert with_ssd(occupied=0.9).ssd.capacity == pytest.approx(80e9, rel=1e-3)


def test_a_preset_keeps_the_rest_of_the_system_and_its_sources():
    system = with_ssd(trim=False)
    assert system.gpu == load_system(SYSTEM).gpu
    assert system.sources["ssd.trim"] == "set by the user"
    assert "ssd.capacity" not in system.sources
    bare = {"preset": ZNAND}
    plain = load_system(SYSTEM).model_dump(mode="json")
    own = load_system({**plain, "ssd": bare, "sources": {"gpu.clock": "mine"}})
    assert own.ssd == load_system({"preset": SYSTEM, "ssd": bare}).ssd
    assert own.sources["gpu.clock"] == "mine"
    assert "Z-NAND" in own.sources["ssd.page_size"]


@pytest.mark.parametrize(
    ("ssd", "message"),
    [
        ({"channels": 0}, r"^system.ssd.channels: found 0; allowed: greater than or equal to 1"),
        ({"overprovisioning": 0}, r"^system.ssd.overprovisioning: found 0; allowed: greater than 0"),
        (
            {"overprovisioning": 0.01},
            r"^system.ssd.overprovisioning: found 0.01 of 4096 superblocks, 41.0; allowed: at least 126, for",
        ),
        ({"chanels": 8}, r"^system.ssd.chanels: found an unknown key \(did you mean 'channels'\?\)"),
        ({"program": "0 us"}, r"^system.ssd.program: found 0; allowed: more than zero"),
        ({"bus": 1000}, r"^system.ssd.bus: found 1000 without a unit"),
        ({"occupied": 1}, r"^system.ssd.occupied: found 1; allowed: less than 1"),
        ({"condition": "used"}, r"^system.ssd.condition: found 'used'; allowed: fresh, random, sequential"),
        ({"copy_planes": 3}, r"^system.ssd.copy_planes: found 3; allowed: 1 to 2, its planes"),
        (
            {"collection": {"start": 0.01}},
            r"^system.ssd.collection.urgent: found 0.03; allowed: at most 'start', 0.01",
        ),
        ({"slc": {"capacity": "1 GB"}}, r"^system.ssd.slc.program: found nothing \(the key is missing\)"),
        ({"model": "flsh"}, r"^system.ssd.model: found 'flsh' \(did you mean 'flash'\?\); allowed: flash, "),
        ({"preset": "samsung"}, r"^system.ssd: found unknown SSD 'samsung'.*; allowed: crucial-p1"),
    ],
)
def test_bad_drives_name_key_value_and_choices(ssd, message):
    with pytest.raises(ConfigError, match=message) as caught:
        with_ssd(**ssd)
    assert "allowed: " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("drives", "depth", "seconds"),
    [
        # One request: its way through the host, the drive's latency, and its size over the rate of one drive.
        (1, 1, 100e-6 + 60e-6 + 1e6 / 5e9),
        (4, 1, 100e-6 + 60e-6 + 1e6 / 5e9),
        # Two on one drive: each meets the other there as often as that one is in line alone, 200 of 360 us.
        (1, 2, (160e-6 + 200e-6 * (1 + 200 / 360)) / 2),
    ],
)
def test_requests_of_the_host_limit_a_drive(drives, depth, seconds):
    requests = {"size": "1 MB", "depth": depth, "host": "100 us"}
    spec = SsdSpec(
        capacity="1 TB",
        read_bandwidth="5 GB/s",
        write_bandwidth="5 GB/s",
        latency="60 us",
        drives=drives,
        requests=requests,
    )
    assert spec.all_drives[1] == pytest.approx(1e6 / seconds, rel=1e-6)


def test_a_thread_issues_no_more_requests_than_it_has_time_for():
    slow = RequestsSpec(size="4 KiB", depth=256, cpu="2.3 us")
    assert slow.rate(10**12, 10**6, 1) == pytest.approx(4096 / 2.3e-6, rel=1e-6)
    with pytest.raises(
        ValueError, match=r"depth: found 65536 with 16 threads; allowed: at most 1000000 requ"
    ):
        RequestsSpec(depth=65_536, threads=16)
    two = RequestsSpec(size="4 KiB", depth=256, cpu="2.3 us", threads=2)
    assert two.rate(10**12, 10**6, 1) == pytest.approx(2 * 4096 / 2.3e-6, rel=1e-6)


def test_four_drives_are_as_fast_at_depth_as_measured():
    # Four Gen 5 drives of 14 GB/s, requests of 1 MiB, one thread: 3.9, 24 and 45 GiB/s at depth 1, 8 and 32
    # (Mooncake, pull request 2806). The host's latency is chosen at depth 1 alone.
    def rate(depth):
        return RequestsSpec(depth=depth, host="107 us").rate(4 * 14 * 10**9, 69 * 10**6, 4) / 2**30

    assert rate(1) == pytest.approx(3.9, rel=0.01)
    assert rate(8) == pytest.approx(24, rel=0.12)
    assert rate(32) == pytest.approx(45, rel=0.12)
