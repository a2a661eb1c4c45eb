"""Keys that do nothing where they stand: refused there, accepted where they count, and both are true."""

from copy import deepcopy
from dataclasses import dataclass, field

import pytest

from g10sim.config.document import Document
from g10sim.config.effects import effects_of as effects_at
from g10sim.config.load import with_values
from g10sim.config.quantities import Spec
from g10sim.errors import ConfigError, G10SimError
from g10sim.experiment.execution import simulate
from g10sim.experiment.expand import expand
from g10sim.policies.interface.parameters import Declared
from g10sim.policies.interface.registry import available
from g10sim.results.columns import BOUND

MB = 10**6
PAGED = {"policies": ["base_uvm"]}
ACCESSING = {"policies": ["in_place"]}
COPYING = {"policies": [{"name": "vdnn", "mode": "all"}]}
RELEASING = {
    "policies": [{"name": "vdnnpp", "mode": "all", "host_buffers": "released"}],
    "system.gpu.memory": "94 MB",
    "system.host.pinned": {"pin_latency": "900 us", "unpin_rate": "9 GB/s"},
}
HOST_PLAN = {"policies": ["g10_host"]}
TO_SSD = {"policies": ["flashneuron"]}
BATCHED = {"compat.transfers": "batched"}
ONCE = {"workload.iterations": 1}
KEPT = {"compat.addresses": "own", "compat.dead_tensors": "kept"}
FLASH = {
    "system.host.memory": "0 B",
    "system.ssd": {
        "preset": "samsung-sz985-800gb",
        "channels": 4,
        "dies": 2,
        "blocks": 64,
        "pages": 16,
        "page_size": "16 KiB",
        "overprovisioning": 0.3,
        "write_buffer": "0 B",
        "occupied": 0.4,
    },
}
FULL = {**FLASH, "system.ssd.condition": "random"}
IN_PLACE = {**FLASH, "system.ssd.in_place": True}
ONE_PLANE = {**FLASH, "system.ssd.planes": 1}
TWO = {"system.gpu.count": 2}
SOCKETS = [{"name": "a", "gpus": [0]}, {"name": "b", "gpus": [1]}]
RING = {**TWO, "workload.replicas": 2}
CXL = {"name": "cxl", "kind": "memory", "capacity": "200 MB"}
DISK = {
    "name": "disk",
    "kind": "ssd",
    "capacity": "10 GB",
    "read": "3 GB/s",
    "write": "3 GB/s",
    "latency": "9 us",
}
COMPRESSING = {"name": "vdnnpp", "mode": "all", "density": 0.3}
AT_ONCE = {"system.page_fault.batch": None}
FAST = {"system.pcie.bandwidth": "16 GB/s"}
COMPRESSION = {"workers": 2, "compression_rate": "1 GB/s", "decompression_rate": "1 GB/s"}
PINNED = {"limit": "20 MB", "pageable_bandwidth": "3 GB/s"}
PAGEABLE = {"pageable_bandwidth": "1 GB/s"}
NOT_PINNED = {"system.host.pinned": None}
CPU = {"system.cpu": {"optimizer_rate": "1 G/s"}, "system.gpu.memory": "300 MB"}
PINNING = {**CPU, "policies": ["tencache"], "system.host.pinned": PAGEABLE}
CACHE = {"capacity": "1 MB", "sustained": "200 MB/s"}
BOUNCE = {"bandwidth": "2 GB/s", "latency": "50 us"}
NO_HOST = {"system.host.memory": "0 B"}
LINK = [{"name": "switch", "gpus": [0], "bandwidth": "2 GB/s"}]


def jobs(**sharing):
    """Jobs of the trace on one GPU, the second entry twice."""
    entries = {"jobs": [{"trace": "TRACE"}, {"trace": "TRACE", "copies": 2}]}
    return {"workload": {**entries, "sharing": sharing} if sharing else entries}


@dataclass(frozen=True)
class Case:
    """A key with two values, a setting where it is idle, and one where it counts (dotted keys)."""

    key: str
    values: tuple[object, object]
    idle: dict = field(default_factory=dict)
    counts: dict = field(default_factory=dict)


def compat(key, value, other, idle, counts):
    return Case(f"compat.{key}", (value, other), idle, counts)


def ssd(key, value, other, idle, counts):
    return Case(f"system.ssd.{key}", (value, other), idle, counts)


def sharing(key, value, other, idle, counts):
    return Case(f"workload.sharing.{key}", (value, other), jobs(compute=idle), jobs(**counts))


def job(key, value, other, idle, counts):
    return Case(f"workload.jobs.1.{key}", (value, other), idle, counts)


CASES = [
    compat("transfers", "batched", "fluid", COPYING, PAGED),
    compat("recency", "use", "arrival", COPYING, PAGED),
    compat("addresses", "own", "pooled", COPYING, PAGED),
    compat("dead_tensors", "kept", "released", PAGED, {**PAGED, "compat.addresses": "own"}),
    compat("initial_tier", "last", "first", {**PAGED, **NO_HOST}, PAGED),
    compat("fault_cost", "profiled", "latency", COPYING, PAGED),
    compat("compute_overlap", "while_arriving", "after_arrival", COPYING, PAGED),
    compat("batch_pages", 80, 50, PAGED, {**PAGED, **BATCHED}),
    compat("copy_gigabyte", "binary", "decimal", PAGED, COPYING),
    compat("copy_latency", "none", "ssd", PAGED, {"policies": ["flashneuron"]}),
    compat("copy_host_path", "split", "shared", PAGED, COPYING),
    compat("copy_memory", "published", "system", PAGED, HOST_PLAN),
    compat("copy_iterations", "first", "all", PAGED, COPYING),
    compat("absent_weights", "ignored", "fetched", PAGED, HOST_PLAN),
    compat("unread_tensors", "skipped", "allocated", PAGED, {"policies": ["flashneuron"]}),
    compat("reported_digits", "six", "all", PAGED, COPYING),
    compat("planner_gigabyte", "binary", "decimal", PAGED, {"policies": ["tensile"]}),
    compat("planner", "published", "live", PAGED, {"policies": ["g10"]}),
    compat("reported_iteration", "fastest", "last", {**KEPT, **ONCE}, {**KEPT, "workload.iterations": 2}),
    compat(
        "flash_capacity",
        "unlimited",
        "limited",
        {"system.tiers": [{**CXL, "name": "host"}]},
        {"system.gpu.memory": "48 MB", "system.host.memory": "0 B", "system.ssd.capacity": "20 MB"},
    ),
    Case(
        "system.host.memory",
        ("10 MB", "30 MB"),
        {"system.tiers": [CXL, "ssd"]},
        {"system.tiers": ["host", "ssd"]},
    ),
    Case("system.host.memory_bandwidth", ("1 GB/s", None), {**PAGED, **BATCHED}, PAGED),
    Case(
        "system.host.sockets",
        (SOCKETS, None),
        {**RING, "workload.gradient_exchange": "none"},
        {**RING, "system.host.memory_bandwidth": "3 GB/s"},
    ),
    Case(
        "system.host.inter_socket_bandwidth",
        ("1 GB/s", None),
        {**RING, "system.host.sockets": SOCKETS, "workload.gradient_exchange": "host"},
        {**RING, "system.host.sockets": SOCKETS},
    ),
    Case("system.gpu.copy_contention", ({}, None), BATCHED, {"policies": ["deepum"]}),
    Case("system.host.kernel_access", ({}, None), COPYING, ACCESSING),
    Case(
        "system.tiers.1.kernel_access",
        ({}, {"read": "1 GB/s"}),
        {**COPYING, "system.tiers": ["host", CXL, "ssd"]},
        {**ACCESSING, "system.host.memory": "0 B", "system.tiers": ["host", CXL, "ssd"]},
    ),
    Case("system.host.pinned", ({**PINNED, "pin_latency": "9 us"}, None), PAGED, COPYING),
    Case("system.host.pinned", (PINNED, None), TO_SSD, COPYING),
    Case(
        "system.host.pinned.pin_latency", ("9 us", "0 us"), PINNING, {**COPYING, "system.host.pinned": PINNED}
    ),
    Case("system.host.pinned.pin_rate", ("1 GB/s", None), PINNING, {**COPYING, "system.host.pinned": PINNED}),
    Case("system.host.pinned.unpin_latency", ("30 ms", "0 us"), PINNING, RELEASING),
    Case("system.host.pinned.unpin_rate", ("1 GB/s", None), PINNING, RELEASING),
    Case(
        "system.host.compression",
        (COMPRESSION, {**COMPRESSION, "workers": 1}),
        TO_SSD,
        {
            **FAST,
            "policies": [{"name": "vdnnpp", "mode": "all", "density": 0.3}],
            "system.gpu.memory": "94 MB",
        },
    ),
    Case(
        "system.host.pinned.beyond_limit",
        ("stays", "pageable"),
        COPYING,
        {**COPYING, "system.host.pinned": PINNED},
    ),
    Case(
        "system.host.pinned.pageable_bandwidth",
        ("1 GB/s", None),
        {**COPYING, "system.host.pinned": {"pin_latency": "9 us"}},
        {**COPYING, "system.host.pinned": {"limit": "10 MB"}},
    ),
    Case(
        "system.ssd",
        ({"read_bandwidth": "1 GB/s"}, {"read_bandwidth": "2 GB/s"}),
        {"system.tiers": ["host", CXL]},
        {**NO_HOST, "system.tiers": ["host", "ssd"]},
    ),
    Case("system.gpu.count", (2, 1), PAGED, {"workload.replicas": 2}),
    Case("system.gpu.count", (3, 1), {"policies": ["g10"]}, {"workload.replicas": 2}),
    Case("system.nvlink", ({"bandwidth": "1 GB/s"}, None), PAGED, RING),
    ssd(
        "path",
        "host",
        "direct",
        {**BATCHED, "system.ssd.bounce": BOUNCE},
        {**NO_HOST, "system.ssd.bounce": BOUNCE},
    ),
    ssd("bounce", BOUNCE, {**BOUNCE, "bandwidth": "1 GB/s"}, {}, {**NO_HOST, "system.ssd.path": "host"}),
    ssd(
        "behind",
        "switch",
        None,
        {**BATCHED, "system.pcie": {"shared": LINK}},
        {**NO_HOST, "system.pcie.shared": LINK},
    ),
    ssd("write_latency", "9 ms", "0 s", PAGED, TO_SSD),
    ssd("write_cache", CACHE, None, {**TO_SSD, "system.ssd.write_bandwidth": "100 MB/s"}, TO_SSD),
    ssd("write_window", 1, 2, FLASH, {**FLASH, "system.ssd.write_buffer": "1 MB"}),
    ssd("read_command_plane", "9 us", "1 us", ONE_PLANE, FLASH),
    ssd("program_command_plane", "900 us", "1 us", ONE_PLANE, FLASH),
    ssd("copy_planes", 1, None, ONE_PLANE, FULL),
    ssd("collection", {"start": 0.25, "urgent": 0.1}, {"start": 0.2, "urgent": 0.1}, IN_PLACE, FULL),
    ssd("erase", "50 ms", "1 ms", IN_PLACE, FULL),
    ssd("streams", 3, 1, IN_PLACE, FULL),
    ssd("trim", False, True, IN_PLACE, FULL),
    ssd("condition", "sequential", "random", IN_PLACE, FULL),
    Case("system.page_fault.batch", (16, 256), COPYING, PAGED),
    Case(
        "system.page_fault.leaf",
        ("256 KiB", "64 KiB"),
        {"system.page_fault.batch": None},
        {"system.page_fault.batch": 16},
    ),
    Case("system.page_fault.threshold", (0.9, 0.1), {"system.page_fault.batch": None}, PAGED),
    Case("system.page_fault.eviction", ("serial", "overlapped"), COPYING, PAGED),
    Case(
        "system.pcie.service",
        ("first_come", "fair"),
        BATCHED,
        {"policies": ["deepum"], "system.gpu.memory": "54 MB"},
    ),
    Case(
        "system.tiers.1.bounce",
        (BOUNCE, {**BOUNCE, "bandwidth": "1 GB/s"}),
        {"system.tiers": ["host", {**DISK, "path": "direct"}]},
        {**NO_HOST, "system.tiers": ["host", {**DISK, "path": "host", "bounce": BOUNCE}]},
    ),
    Case("system.pcie.shared", (LINK, None), {**PAGED, **BATCHED}, PAGED),
    Case("workload.gradient_exchange", ("host", "ring"), {}, RING),
    Case(
        "workload.gradient_exchange.bucket",
        ("1 MB", "25 MiB"),
        {**RING, "workload.gradient_exchange": {"method": "none"}},
        {**RING, "workload.gradient_exchange": {"method": "ring"}},
    ),
    Case(
        "workload.variation.distribution",
        ("normal", "uniform"),
        {"workload.variation": {"magnitude": 0}},
        {"workload.variation": {"magnitude": 0.1}},
    ),
    sharing("time_slice", "1 ms", "50 us", "exclusive", {"compute": "time_sliced"}),
    sharing("slowdown", 0.3, 1.0, "time_sliced", {"compute": "concurrent"}),
    sharing("admission", "refuse", "wait", "exclusive", {"compute": "concurrent"}),
    sharing("admission_memory", "footprint", "working_set", "exclusive", {"compute": "concurrent"}),
    job("priority", 5, 1, jobs(), jobs(compute="concurrent")),
    job("interval", "1 ms", "3 ms", {**jobs(), "workload.jobs.1.copies": 1}, jobs()),
    job(
        "arrivals",
        "poisson",
        "fixed",
        {**jobs(), "workload.jobs.1": {"trace": "TRACE", "interval": "2 ms"}},
        {**jobs(), "workload.jobs.1.interval": "2 ms"},
    ),
]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a policy with two values, and what makes it idle and count: parameters or settings."""

    policy: str
    key: str
    values: tuple[object, object]
    idle: dict
    counts: dict

    def case(self):
        """The same as a key of a configuration with this policy alone."""

        def setting(changes):
            known = available()[self.policy].parameter_names()
            given = {key: value for key, value in changes.items() if key in known}
            others = {key: value for key, value in changes.items() if key not in known}
            return {**others, "policies": [{"name": self.policy, **given}]}

        return Case(f"policies.0.{self.key}", self.values, setting(self.idle), setting(self.counts))


MORE = {"workload.iterations": 4, "system.gpu.memory": "54 MB", "system.pcie.bandwidth": "4 GB/s"}
NOTHING = {"system.gpu.memory": "120 MB"}
NONE, EVERY = {**NOTHING, "mode": "none"}, {"mode": "all", "system.gpu.memory": "94 MB"}
NO_LADDER = {**NOTHING, "ladder": "K0"}
SLOW_PINNING = {"system.host.pinned": {"pin_latency": "30 us", "pin_rate": "3 GB/s"}}
WORKERS = {"system.host.compression": COMPRESSION}
ORDERS = "gradient_first", "prefetch_first"
ON_SSD = {**CPU, "offload_optimizer": "ssd"}
ACCESS = {"system.host.kernel_access": {}, "system.pcie.bandwidth": "4 GB/s"}
PARAMETERS = [
    Parameter("base_uvm", "access_counter", (9, None), {}, ACCESS),
    Parameter(
        "g10_paced",
        "pacing_rounds",
        (1, 5),
        {"method": "published"},
        {"method": "paced", "system.gpu.memory": "42 MB", "system.host.memory": "0 B"},
    ),
    Parameter(
        "g10_paced",
        "trial_kernels",
        (0, 1000),
        {"method": "waiting"},
        {"method": "fastest", "system.gpu.memory": "42 MB", "system.host.memory": "0 B"},
    ),
    Parameter("flashneuron", "density", (0.3, 0.9), {"compression": "half"}, {"compression": "csr"}),
    Parameter(
        "autoswap",
        "seed",
        (1, 0),
        {"pool": "caching"},
        {"pool": "caching", "score": "combined", "system.gpu.memory": "70 MB"},
    ),
    Parameter("capuchin", "memory_target", ("40 MB", None), ONCE, {}),
    Parameter("capuchin", "saving", (0.7, None), ONCE, {}),
    Parameter("capuchin", "recomputation", (False, True), ONCE, MORE),
    Parameter("capuchin", "least_tensor", ("9 MB", "64 KiB"), ONCE, {}),
    Parameter("capuchin", "feedback", (0.9, 0.0), {"workload.iterations": 2}, MORE),
    Parameter("tensile", "prediction_seed", (3, 0), {}, {"prediction_error": 0.5}),
    Parameter("tensile", "replan_threshold", (None, 0.0), ONCE, {"prediction_error": 0.5, **MORE}),
    Parameter("tensile", "channels", ("shared", "per_job"), {}, jobs(compute="time_sliced")),
    Parameter("vdnn", "order", ORDERS, NONE, {**EVERY, "system.gpu.memory": "92 MB"}),
    Parameter("vdnnpp", "order", ORDERS, NONE, EVERY),
    Parameter("vdnnpp", "join", ("memory", "forward_end"), NONE, EVERY),
    Parameter("vdnnpp", "returns_space", ("between_kernels", "at_once"), NONE, EVERY),
    Parameter("vdnnpp", "host_buffers", ("released", "kept"), NONE, {**EVERY, **SLOW_PINNING}),
    Parameter("vdnnpp", "density", (0.3, 0.9), {**NONE, **WORKERS}, {**EVERY, **WORKERS, **FAST}),
    Parameter("vdnn_multi", "order", ORDERS, NO_LADDER, {"ladder": "K1"}),
    Parameter("vdnn_multi", "layer_end_join", (True, False), NO_LADDER, {"ladder": "K2"}),
    Parameter("vdnn_multi", "prefetch", ("planned", "window"), NO_LADDER, {"ladder": "K2"}),
    Parameter(
        "vdnn_multi",
        "feedback",
        (False, True),
        {"ladder": "K2"},
        {
            "ladder": "K2",
            "prefetch": "planned",
            "workload.iterations": 4,
            "system.gpu.memory": "94 MB",
            "system.host.pinned": {**PINNED, **SLOW_PINNING["system.host.pinned"]},
        },
    ),
    Parameter("vdnn_multi", "headroom", (0.4, 0.0), {"ladder": "K1"}, {"ladder": "K3"}),
    Parameter("stream", "pinned", (False, True), NOT_PINNED, {"system.host.pinned": PAGEABLE}),
    Parameter(
        "tencache",
        "buffers",
        ("none", "size_classes"),
        {**CPU, **NOT_PINNED},
        {**CPU, "system.host.pinned": PAGEABLE},
    ),
    Parameter("zero_offload", "overlap", (True, False), {**CPU, "delayed_update": True}, CPU),
    Parameter("zero_infinity", "pipeline", (True, False), CPU, ON_SSD),
    Parameter("zero_infinity", "buffer_count", (1, 3), ON_SSD, {**ON_SSD, "pipeline": True}),
    Parameter("lohan", "optimizer_buffers", (1, 3), CPU, {**CPU, "pipeline": True}),
]
ALL = [*CASES, *(parameter.case() for parameter in PARAMETERS)]


def names(case):
    return (
        case.key if not case.key.startswith("policies") else f"{case.idle['policies'][0]['name']}.{case.key}"
    )


each = pytest.mark.parametrize("case", ALL, ids=names)


def named(value, trace_file):
    """The value with the name of the trace filled in."""
    if isinstance(value, dict):
        return {key: named(inner, trace_file) for key, inner in value.items()}
    if isinstance(value, list):
        return [named(inner, trace_file) for inner in value]
    return trace_file if value == "TRACE" else value


def document(trace_file, *changes):
    """A small run with dotted keys changed, those of the first changes first."""
    system = {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "90 MB"}, "host": {"memory": "40 MB"}}
    workload = {"trace": trace_file, "iterations": 2}
    data = {"workload": workload, "system": system, "policies": ["base_uvm"]}
    made = Document(data, "")
    for change in changes:
        for key, value in named(deepcopy(change), trace_file).items():
            made = with_values(made, {key: value})
    return made


def outcome(trace_file, setting, case, value):
    """Rows of all cells, or why there are none, whether or not keys do anything."""
    changes = {} if value is None and not case.key.startswith("policies") else {case.key: value}
    found = []
    try:
        cells = expand(document(trace_file, setting, changes, {"resolved": True})).cells
    except ConfigError as error:
        return [str(error)]
    for cell in cells:
        try:
            rows = simulate(cell.workload(), cell.system, cell.make_policy(), cell.behaviour)[1]
            found.append([{key: row[key] for key in row if key not in BOUND.names} for row in rows])
        except G10SimError as error:
            found.append(str(error))
    return found


def effects_of(case):
    """Return what may be said of a key: the effects of all keys of its name, or of the policy's parameter."""
    key = case.key.split(".")[-1]
    if case.key.startswith("policies"):
        return [available()[case.idle["policies"][0]["name"]].parameter_effects()[key]]
    return [effects[key] for effects in map(effects_at, parts()) if key in effects]


def parts():
    found = [*Spec.__subclasses__()]
    for part in found:
        found += part.__subclasses__()
    return found


def test_every_key_that_does_not_always_count_has_a_case():
    ruled = {key for part in parts() for key in effects_at(part)} - {"sharing"}
    assert {case.key.split(".")[-1] for case in CASES} == ruled
    declared = {
        (name, key)
        for name, policy in available().items()
        if issubclass(policy, Declared)
        for key in policy.parameter_effects()
    }
    assert {(parameter.policy, parameter.key) for parameter in PARAMETERS} == declared


@each
def test_a_key_is_refused_where_it_does_nothing(case, trace_file):
    with pytest.raises(ConfigError) as refusal:
        expand(document(trace_file, case.idle, {case.key: case.values[0]}))
    found, _, said = str(refusal.value).partition(", which does nothing here: ")
    assert found.startswith(f"{case.key}: found ")
    assert said in [
        f"{effect.otherwise}; allowed: {effect.where}, or leaving it out" for effect in effects_of(case)
    ]


CAPUCHIN = {"name": "capuchin", "memory_target": "40 MB"}


def apart(**changes):
    """Two jobs of the trace, the second with changes."""
    return {"workload": {"jobs": [{"trace": "TRACE", "iterations": 1}, {"trace": "TRACE", **changes}]}}


@pytest.mark.parametrize(
    "setting",
    [
        {**TWO, **apart(gpu=1), "system.nvlink": {"bandwidth": "1 GB/s"}},
        {**TWO, "system.tiers": ["host", {**DISK, "at": "gpu1"}], "system.nvlink": {"bandwidth": "1 GB/s"}},
        {
            **TWO,
            "system.tiers": ["host", {**CXL, "at": "a"}],
            "system.host.sockets": SOCKETS,
            "system.host.inter_socket_bandwidth": "1 GB/s",
        },
        {**apart(iterations=2), "policies": [CAPUCHIN]},
    ],
    ids=["jobs apart", "tier at a GPU", "tier at a socket", "iterations of one job"],
)
def test_one_job_or_tier_makes_a_key_count(setting, trace_file):
    expand(document(trace_file, setting))


@pytest.mark.slow
@each
def test_a_key_changes_nothing_there(case, trace_file):
    one, other = (outcome(trace_file, case.idle, case, value) for value in case.values)
    assert one == other
    assert not any(isinstance(rows, str) for rows in one), one


@pytest.mark.slow
@each
def test_a_key_is_accepted_where_it_counts_and_changes_numbers(case, trace_file):
    expand(document(trace_file, case.counts, {case.key: case.values[0]}))
    one, other = (outcome(trace_file, case.counts, case, value) for value in case.values)
    assert one != other
    assert not all(isinstance(rows, str) for rows in [*one, *other])
