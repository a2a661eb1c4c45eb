import re
from contextlib import nullcontext

import pytest

from g10sim.config.behaviour import GPG, BehaviourSpec
from g10sim.config.data import data_path, find_file, find_files
from g10sim.config.links import LINK_RATES
from g10sim.config.presets import load_behaviour, load_system, system_names
from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError

NOT_NUMBERS = {"name", "description", "sources", "ssd.drives", "pcie.service", "pcie.shared.0.name"}
NOT_NUMBERS |= {
    "host.pinned.beyond_limit",
    "host.pinned.pin_latency",
    "host.pinned.unpin_latency",
}  # defaults
NOT_NUMBERS |= {"ssd.model", "ssd.path", "ssd.bounce", "ssd.behind"}
NOT_NUMBERS |= {"tiers.0", "tiers.2", "tiers.1.kind", "tiers.1.at"}
BESIDE_TENSORS = {"gpu.context_memory", "gpu.workspace_memory"}
LINK_RATE = re.compile(
    r"(pcie|nvlink|tiers)\..*(bandwidth|device|duplex|per_copy|read|write|latency)|host\..*bandwidth"
)


def leaves(data, prefix=""):
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        name = f"{prefix}{key}"
        if name == "sources" or value is None or name.endswith(".name"):
            continue
        if isinstance(value, (dict, list)) and not name.endswith(".gpus"):
            yield from leaves(value, f"{name}.")
        else:
            yield name


@pytest.mark.parametrize("name", system_names())
def test_every_number_of_a_preset_has_a_source(name):
    system = load_system(name)
    assert system.name == name
    assert system.description
    numbers = set(leaves(system.model_dump(mode="json"))) - NOT_NUMBERS
    if name == "a100-40g-g10-paper":  # which counts all memory as free for tensors
        numbers -= BESIDE_TENSORS
    assert numbers == set(system.sources)
    assert all(len(source) > 5 for source in system.sources.values())


@pytest.mark.parametrize("name", system_names())
def test_rates_of_links_tell_whether_they_are_measured_or_specified_and_when(name):
    sources = load_system(name).sources
    for key in filter(LINK_RATE.fullmatch, sources):
        if not key.startswith("pcie.shared"):
            assert re.match(r"(measured|specification), .*(19|20)\d\d", sources[key]), (
                f"{key}: {sources[key]}"
            )
    specified = any(sources.get(f"pcie.{key}", "").startswith("specification") for key in LINK_RATES)
    assert specified == name.endswith(("-spec", "-paper"))


def test_presets_with_a_name_of_the_past_are_refused_with_the_near_one():
    with pytest.raises(ConfigError, match=r"did you mean 'gh200-96g-nvlink-c2c-spec'\?"):
        load_system("gh200-96g-nvlink-c2c")


@pytest.mark.parametrize(
    ("name", "into", "out", "both"),
    [
        ("gh200-96g-nvlink-c2c-spec", 450, 450, None),
        ("gh200-96g-measured-ce", 422, 170, 341 + 150),
        ("gh200-96g-measured-sm", 410, 380, 290 + 289),
        ("h100-80g-pcie5-nvme", 53.1, 50.2, 83.4),
        ("rtx5090-32g-pcie5-nvme", 56.3, 57.32, 2 * 50.94),
    ],
)
def test_links_as_fast_as_measured(name, into, out, both):
    link = load_system(name).pcie
    duplex = None if both is None else round(both * 1e9)
    assert (link.inward, link.outward, link.duplex) == (round(into * 1e9), round(out * 1e9), duplex)


@pytest.mark.parametrize(
    ("name", "read", "write", "latency"),
    [("agilex", 21.7, 21.3, 407), ("genoa", 83.2, 84.3, 192)],  # 854 cycles at 2.1 GHz, 712 at 3.7 GHz
)
def test_machines_with_cxl_have_four_tiers_of_memory(name, read, write, latency):
    host, cxl, ssd = load_system(f"h100-80g-cxl-{name}").all_tiers
    assert (host.name, cxl.name, cxl.kind, ssd.name) == ("host", "cxl", "memory", "ssd")
    assert (cxl.read_bandwidth, cxl.write_bandwidth) == (round(read * 1e9), round(write * 1e9))
    assert cxl.latency == latency * 1000


def test_a_preset_may_start_from_another():
    base, found = load_system("gh200-96g-nvlink-c2c-spec"), load_system("gh200-96g-measured-ce")
    own = dict.fromkeys(("name", "description", "host", "pcie", "sources"))
    assert found.model_copy(update=own) == base.model_copy(update=own)
    assert found.sources["host.memory"] == base.sources["host.memory"]
    assert found.sources["pcie.to_device"].startswith("measured, nvbandwidth 0.9")
    assert "pcie.bandwidth" not in found.sources


def test_a_file_may_start_from_a_file_that_starts_from_a_preset(tmp_path):
    (tmp_path / "one.yaml").write_text("preset: v100-16g-pcie3-optane\nname: one\nhost: {memory: 8 GiB}\n")
    (tmp_path / "two.yaml").write_text(
        "preset: one.yaml\nname: two\ngpu: {memory: 12 GiB}\nsources: {gpu.memory: half of it is used}\n"
    )
    found = load_system({"preset": "two.yaml", "gpu": {"count": 2}}, tmp_path)
    assert (found.name, found.gpu.count, found.gpu.memory, found.host.memory) == ("two", 2, 12 << 30, 8 << 30)
    assert (found.sources["gpu.memory"], found.sources["host.memory"]) == (
        "half of it is used",
        "set by the user",
    )
    assert found.sources["ssd.latency"] == load_system("v100-16g-pcie3-optane").sources["ssd.latency"]


@pytest.mark.parametrize("circle", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_presets_in_a_circle_are_refused_in_one_line(tmp_path, circle):
    for name, base in zip(circle, [*circle[1:], circle[0]], strict=True):
        (tmp_path / f"{name}.yaml").write_text(f"preset: {base}.yaml\nname: {name}\n")
    with pytest.raises(
        ConfigError, match=r"^system: .*found a circle of presets, .*a\.yaml -> .*; allowed: "
    ) as found:
        load_system("a.yaml", tmp_path)
    assert "\n" not in str(found.value)


def test_new_rates_of_a_link_replace_all_of_the_presets():
    symmetric = load_system({"preset": "gh200-96g-measured-ce", "pcie": {"bandwidth": "400 GB/s"}})
    assert (symmetric.pcie.inward, symmetric.pcie.outward, symmetric.pcie.duplex) == (
        4 * 10**11,
        4 * 10**11,
        None,
    )
    assert symmetric.sources["pcie.bandwidth"] == "set by the user"
    assert not {"pcie.to_device", "pcie.from_device", "pcie.duplex"} & set(symmetric.sources)
    directed = {"to_device": "30 GB/s", "from_device": "20 GB/s"}
    link = load_system({"preset": "h100-80g-pcie5-nvme", "pcie": directed}).pcie
    assert (link.inward, link.outward, link.duplex, link.per_copy) == (
        3 * 10**10,
        2 * 10**10,
        None,
        3_400_000,
    )
    one = load_system({"preset": "h100-80g-pcie5-nvme", "pcie": {"to_device": "52 GB/s"}}).pcie
    assert (one.inward, one.outward, one.duplex) == (52 * 10**9, 50_200_000_000, 83_400_000_000)


def test_the_published_setting():
    system = load_system("a100-40g-g10-paper")
    assert system.gpu.memory == 40 * 2**30
    assert system.gpu.clock == 1_200_000_000
    assert system.gpu.page_size == 4096
    assert system.gpu.allocation_rate == pytest.approx(1 / 0.814e-12)
    assert system.host.memory == 128 * 2**30
    assert (system.ssd.read_bandwidth, system.ssd.write_bandwidth) == (3_200_000_000, 3_000_000_000)
    assert (system.ssd.latency, system.ssd.write_latency) == (20 * 10**6, 16 * 10**6)
    assert system.pcie.bandwidth == 15_754_000_000
    assert system.page_fault.latency == 45 * 10**6


@pytest.mark.parametrize("name", system_names())
def test_a_system_written_out_is_the_same_system(name):
    system = load_system(name)
    assert load_system(system.model_dump(mode="json")) == system


def test_changes_of_a_preset_replace_its_numbers_and_their_sources():
    changed = load_system({"preset": "a100-40g-pcie3-znand", "host": {"memory": "64 GiB"}})
    assert changed.host.memory == 64 * 2**30
    assert changed.gpu == load_system("a100-40g-pcie3-znand").gpu
    assert changed.sources["host.memory"] == "set by the user"
    assert "A100" in changed.sources["gpu.memory"]


def test_a_system_from_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(data_path("configs", "systems", "v100-16g-pcie3-optane.yaml").read_text())
    assert load_system("mine.yaml", tmp_path) == load_system("v100-16g-pcie3-optane")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "a100-40g-pcie3-znan",
            r"^system: found unknown system 'a100-40g-pcie3-znan' \(did you mean 'a100-40g",
        ),
        (
            {"preset": "h100-80g-pcie5-nvme", "host": {"memry": "1 GiB"}},
            r"^system.host.memry: .*did you mean 'memory'",
        ),
        (
            {"preset": "h100-80g-pcie5-nvme", "host": {"memory": 64}},
            r"^system.host.memory: found 64 without a unit",
        ),
        ({"preset": "h100-80g-pcie5-nvme", "host": {"memory": "64 GBit"}}, r"found unknown unit 'GBit'"),
        ({"preset": "h100-80g-pcie5-nvme", "host": {"memory": "-1 GiB"}}, r"found negative '-1 GiB'"),
        (
            {"preset": "h100-80g-pcie5-nvme", "host": 3},
            r"^system.host: found 3; allowed: a mapping with the keys memory",
        ),
        (
            {"preset": "h100-80g-pcie5-nvme", "gpu": {"count": True}},
            r"^system.gpu.count: found True; allowed: a valid int",
        ),
        (
            {"preset": "h100-80g-pcie5-nvme", "gpu": {"count": 0}},
            r"^system.gpu.count: found 0; allowed: greater",
        ),
        (
            {"preset": "h100-80g-pcie5-nvme", "gpu": {"page_size": "0 B"}},
            r"^system.gpu.page_size: found 0; allowed: more",
        ),
        (
            {"preset": "h100-80g-pcie5-nvme", "ssd": {"model": "links"}},
            r"^system.ssd.model: found 'links' .*'link'",
        ),
        (
            {"preset": "h100-80g-pcie5-nvme", "ssd": {"model": 3}},
            r"^system.ssd.model: found '3'; allowed: flash, link$",
        ),
        (
            {"preset": "h100-80g-pcie5-nvme", "tiers": [{"name": "x", "kind": "ssd", "model": "flas"}]},
            r"^system.tiers.0.model: found 'flas' \(did you mean 'flash'\?\); allowed: flash, link$",
        ),
        ({"preset": 7}, r"^system.preset: found 7; allowed: the name of a preset"),
        (["h100"], r"^system: found \['h100'\]; allowed: the name of a preset, or a mapping"),
        ({"gpu": {}}, r"^system.gpu.memory: found nothing \(the key is missing\)"),
        ("missing.yaml", r"^system: found 'missing.yaml', which is no file"),
    ],
)
def test_bad_systems_name_key_value_and_choices(spec, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_system(spec)
    assert "allowed: " in str(caught.value)
    assert "\n" not in str(caught.value)


def shared(*links):
    rate = "10 GB/s"
    links = [{"name": name, "gpus": list(gpus), "bandwidth": rate} for name, gpus in links]
    return {"preset": "4xa100-40g-pcie4-shared", "pcie": {"shared": links}}


def test_shared_links_must_form_a_tree():
    nested = load_system(shared(("left", (0, 1)), ("right", (2, 3)), ("root", (0, 1, 2, 3))))
    assert [link.name for link in nested.pcie.shared] == ["left", "right", "root"]
    with pytest.raises(ConfigError, match=r"pcie.shared: links 'a' and 'b' overlap .*allowed: a tree"):
        load_system(shared(("a", (0, 1)), ("b", (1, 2))))
    with pytest.raises(ConfigError, match=r"pcie.shared: two links are called 'a'"):
        load_system(shared(("a", (0, 1)), ("a", (2, 3))))
    with pytest.raises(ConfigError, match=r"pcie.shared: link 'a' names GPU 4; allowed: 0 to 3"):
        load_system(shared(("a", (3, 4))))


def test_behaviours():
    assert load_behaviour(None) == BehaviourSpec()
    assert load_behaviour("gpg") == GPG
    assert load_behaviour({"preset": "gpg", "recency": "use"}) == GPG.model_copy(update={"recency": "use"})
    with pytest.raises(
        ConfigError, match=r"compat: found unknown preset 'gpgg' \(did you mean 'gpg'\?\); allowed: gpg"
    ):
        load_behaviour("gpgg")
    with pytest.raises(ConfigError, match=r"compat.batch_pages: found '50'; allowed: a valid integer"):
        load_behaviour({"batch_pages": "50"})


def test_systems_are_immutable():
    system = load_system("h100-80g-pcie5-nvme")
    with pytest.raises(ValueError, match="frozen"):
        system.name = "other"
    assert isinstance(system, SystemSpec)


def test_files_are_found_here_then_beside_the_configuration_then_among_the_bundled_data(
    tmp_path, monkeypatch
):
    here, beside = tmp_path / "here", tmp_path / "beside"
    for directory in (here, beside):
        (directory / "traces").mkdir(parents=True)
    monkeypatch.chdir(here)
    (beside / "traces" / "one.g10t").write_text("beside")
    assert find_file("traces/one.g10t", beside).read_text() == "beside"
    (here / "traces" / "one.g10t").write_text("here")
    assert find_file("traces/one.g10t", beside).read_text() == "here"
    assert find_file("configs/quickstart.yaml", beside) == data_path("configs", "quickstart.yaml")
    (here / "traces" / "a.g10t").write_text("")
    assert [name for name, _ in find_files("traces/*.g10t", beside)] == ["traces/a.g10t", "traces/one.g10t"]
    assert [path.name for _, path in find_files(f"{beside}/traces/*")] == ["one.g10t"]
    with pytest.raises(ConfigError, match=r"found 'no.g10t', which is no file in the working directory"):
        find_file("no.g10t", beside)
    with pytest.raises(ConfigError, match=r"found pattern 'no\*', which matches no file"):
        find_files("no*")
    (here / "[a].g10t").touch()
    assert [name for name, _ in find_files("[a].g10t")] == ["[a].g10t"]


@pytest.mark.parametrize(
    ("sockets", "link", "message"),
    [
        (("a", "socket0"), "up", "host.sockets: found the name 'socket0'"),
        (("a", "a"), "up", "host.sockets: found the name 'a'"),
        (("a", "up"), "up", "host.sockets: found the name 'up'"),
        (("a", "b"), "gpu1", "pcie.shared: found the name 'gpu1'"),
        (("a", "b"), "socket1", "pcie.shared: found the name 'socket1'"),
        (("socket0", "socket1"), "up", ""),
    ],
)
def test_places_where_tiers_hang_have_names_of_their_own(sockets, link, message):
    host = {"sockets": [{"name": name, "gpus": [gpu]} for gpu, name in enumerate(sockets)]}
    pcie = {"shared": [{"name": link, "gpus": [0, 1], "bandwidth": "20 GB/s"}]}
    system = {"preset": "a100-40g-pcie3-znand", "gpu": {"count": 2}, "host": host, "pcie": pcie}
    with pytest.raises(ConfigError, match=message) if message else nullcontext():
        load_system(system)
