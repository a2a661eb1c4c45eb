"""Timelines against the trace event format, and against the records they are made of."""

import json
from collections import Counter, defaultdict
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from jsonschema import Draft202012Validator
from machines import OWN, FollowPlan, machine, trace_of
from memories import FLASH, HOST

import g10sim
from g10sim.config.sharing import ExchangeSpec
from g10sim.policies.designs.zero_infinity import ZeroInfinity
from g10sim.records import Location, MigrationCause, MigrationRecord, RunRecords, StallReason, TrafficRecord
from g10sim.results.blame import link_traffic
from g10sim.results.timeline import TraceEvents, chrome_trace
from g10sim.sim.engine import run
from g10sim.sim.preparation import as_recorded
from g10sim.trace.model import Device
from g10sim.trace.synthetic import chain
from g10sim.trace.transformer import Transformer
from g10sim.trace.workload import Job, Workload

NUMBER = {"type": "number", "minimum": 0}
PLACE = {"pid": {"type": "integer", "minimum": 1}, "tid": {"type": "integer", "minimum": 0}}
METADATA = ["process_name", "process_sort_index", "thread_name", "thread_sort_index"]


def phase(letter, *, required=(), **properties):
    """One kind of event, with nothing beside what the format knows of it."""
    common = {"name": {"type": "string", "minLength": 1}, "ph": {"const": letter}, **PLACE}
    needed = ["name", "ph", "pid", "tid", *required]
    return {
        "type": "object",
        "properties": {**common, **properties},
        "required": needed,
        "additionalProperties": False,
    }


ARGUMENTS = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
SCHEMA = {
    # Trace Event Format: JSON object format; complete, instant, counter and metadata events.
    "type": "object",
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object", "additionalProperties": {"type": "string"}},
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    phase("X", required=("ts", "dur"), ts=NUMBER, dur=NUMBER, args=ARGUMENTS),
                    phase("i", required=("ts", "s"), ts=NUMBER, s={"enum": ["g", "p", "t"]}, args=ARGUMENTS),
                    phase(
                        "C",
                        required=("ts", "args"),
                        ts=NUMBER,
                        args={"type": "object", "minProperties": 1, "additionalProperties": NUMBER},
                    ),
                    *(
                        phase(
                            letter,
                            required=("ts", "id", "cat"),
                            ts=NUMBER,
                            id={"type": "integer"},
                            cat={"type": "string"},
                            **more,
                        )
                        for letter, more in (("s", {}), ("f", {"bp": {"const": "e"}}))
                    ),
                    phase(
                        "M",
                        required=("args",),
                        name={"enum": METADATA},
                        args={
                            "type": "object",
                            "properties": {"name": {"type": "string"}, "sort_index": {"type": "integer"}},
                            "minProperties": 1,
                            "maxProperties": 1,
                            "additionalProperties": False,
                        },
                    ),
                ]
            },
        },
    },
    "required": ["traceEvents"],
    "additionalProperties": False,
}


class Viewer:
    """Reads a file as a viewer does: rows by their names, slices in the order of time, counters."""

    def __init__(self, text):
        document = json.loads(text)
        Draft202012Validator.check_schema(SCHEMA)
        for problem in Draft202012Validator(SCHEMA).iter_errors(document):
            raise AssertionError(f"{problem.json_path}: {problem.message}")
        self.processes, self.rows, self.slices = {}, {}, defaultdict(list)
        self.instants, self.counters = defaultdict(list), defaultdict(list)
        self.flows = defaultdict(list)
        events = document["traceEvents"]
        for event in (event for event in events if event["ph"] == "M"):
            place = (event["pid"], event["tid"])
            if event["name"] == "process_name":
                self.processes[event["pid"]] = event["args"]["name"]
            elif event["name"] == "thread_name":
                self.rows[place] = event["args"]["name"]
        for event in (event for event in events if event["ph"] != "M"):
            process = self.processes[event["pid"]]
            if event["ph"] == "C":
                (value,) = event["args"].values()
                self.counters[process, event["name"]].append((event["ts"], value))
                continue
            row = self.rows[event["pid"], event["tid"]]
            if event["ph"] in "sf":
                self.flows[event["id"]].append((event["ph"], (process, row), event["ts"]))
                continue
            (self.slices if event["ph"] == "X" else self.instants)[process, row].append(event)
        for row in self.slices.values():
            row.sort(key=lambda event: (event["ts"], -event["dur"]))
            self._check_nesting(row)

    @staticmethod
    def _check_nesting(row):
        open_until = []
        for event in row:
            start, end = nanoseconds(event["ts"]), nanoseconds(event["ts"]) + nanoseconds(event["dur"])
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1], f"{event['name']} overlaps in part"
            open_until.append(end)

    def total(self, *row, where=lambda event: True):
        return sum(nanoseconds(event["dur"]) for event in self.slices[row] if where(event))


def nanoseconds(microseconds):
    value = Fraction(str(microseconds)) * 1000
    assert value.denominator == 1
    return int(value)


SYSTEM = {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "8 MiB"}, "host": {"memory": "4 MiB"}}


def timeline(trace, system, policy):
    result = g10sim.simulate(trace, system, policy, record=["timeline"])
    return result, Viewer(json.dumps(result.timeline()))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["g10", "deepum"])
def test_kernels_of_bert_base_fill_the_iteration(policy):
    result, viewer = timeline("traces/bert-base-b256-s128.g10t", "a100-40g-pcie3-znand", policy)
    clock = result.system.gpu.clock
    for iteration in result.records.iterations:
        kernels = [
            event
            for event in viewer.slices["GPU 0", "kernels"]
            if event["args"]["iteration"] == iteration.iteration
        ]
        assert len(kernels) == len(result.workload.jobs[0].trace.kernels)
        assert sum(event["args"]["cycles"] for event in kernels) == iteration.end - iteration.start
        in_file = sum(nanoseconds(event["dur"]) for event in kernels)
        assert in_file == rounded(iteration.end, clock) - rounded(iteration.start, clock)
    (last,) = result.records.iterations[-1:]
    assert last.end - last.start == result.summary["exec_cycles"]
    assert viewer.total("GPU 0", "compute and stalls") == viewer.total("GPU 0", "kernels")


def rounded(cycles, clock):
    return (2 * cycles * 10**9 + clock) // (2 * clock)


def test_stalls_faults_and_transfers_are_those_of_the_records():
    result, viewer = timeline(chain(8), SYSTEM, "base_uvm")
    kernels, moves = result.kernels, result.migrations
    for reason in ("fault_host", "fault_flash", "first_touch", "eviction"):
        shown = [
            event["args"]["cycles"]
            for event in viewer.slices["GPU 0", "compute and stalls"]
            if event["name"] == f"stall: {StallReason(reason).look.label}"
        ]
        assert sum(shown) == kernels[f"stall_{reason}_cycles"].sum()
    faults = viewer.instants["GPU 0", "page faults"]
    assert sum(event["args"]["host_pages"] for event in faults) == kernels["host_fault_pages"].sum() > 0
    assert sum(event["args"]["SSD_pages"] for event in faults) == kernels["flash_fault_pages"].sum() > 0
    new = sum(event["args"]["first_touch_pages"] for event in faults)
    assert new == kernels["first_touch_pages"].sum() > 0
    directions = {
        "SSD to GPU": ("FLASH", "GPU"),
        "host to GPU": ("HOST", "GPU"),
        "GPU to host": ("GPU", "HOST"),
    }
    for row, (source, target) in directions.items():
        shown = sum(
            event["args"]["size_bytes"]
            for (_, name), events in viewer.slices.items()
            for event in events
            if name.startswith(row)
        )
        assert (
            shown == moves[(moves["source"] == source) & (moves["target"] == target)]["size_bytes"].sum() > 0
        )


def slice_at(viewer, row, time):
    """The slice of a row that a flow at this time belongs to."""
    at = nanoseconds(time)
    spans = [(nanoseconds(one["ts"]), nanoseconds(one["dur"]), one) for one in viewer.slices[row]]
    (found,) = [one for start, duration, one in spans if start <= at < start + duration]
    return found


def test_flows_lead_from_a_stall_to_the_transfer_that_ended_it():
    result, viewer = timeline(chain(8), SYSTEM, "base_uvm")
    kernels = result.workload.jobs[0].trace.kernels
    assert len(viewer.flows) > 8
    for (first, waiting, since), (last, arriving, until) in viewer.flows.values():
        assert (first, last) == ("s", "f")
        assert since <= until
        stall, transfer = slice_at(viewer, waiting, since), slice_at(viewer, arriving, until)
        assert stall["name"].startswith("stall: ")
        assert arriving[1].split(" (")[0] in ("SSD to GPU", "host to GPU", "new pages")
        kernel = slice_at(viewer, ("GPU 0", "kernels"), since)
        assert transfer["args"]["tensor"] in kernels[kernel["args"]["kernel"]].tensors
        ends = [nanoseconds(one["ts"]) + nanoseconds(one["dur"]) for one in (transfer, kernel)]
        assert ends[0] <= ends[1]


def flows(viewer):
    """For each flow: the stall, the row of the transfer and its tensor, and both times in nanoseconds."""
    return [
        (
            slice_at(viewer, waiting, since)["name"],
            arriving[1],
            slice_at(viewer, arriving, until)["name"],
            nanoseconds(since),
            nanoseconds(until),
        )
        for (_, waiting, since), (_, arriving, until) in viewer.flows.values()
    ]


def test_a_flow_worked_out_by_hand():
    # Kernel 0 writes B: a fault of 1 us, and 1 us to map its page. When it starts, A is prefetched: three
    # pages from the SSD, one every 2 us. Kernel 1 starts at 3 us with one of them there and waits for the
    # other two until 6 us, then computes for 0.5 us. In iteration 1 A is there, and B is made anew.
    trace = trace_of({"A*": 3, "B": 1}, [(1000, "", "B"), (500, "A B", "")])
    policy = FollowPlan(moves=[(0, 0, Location.GPU)])
    workload = Workload((Job(trace, iterations=2),))
    system = machine(gpu_pages=8, host_pages=0)
    records = run(workload, system, policy, OWN, record=("timeline",), check=True)
    assert flows(Viewer(json.dumps(chrome_trace(workload, system, records)))) == [
        ("stall: first touch", "new pages", "B", 0, 0),
        ("stall: late prefetch", "SSD to GPU", "A", 3000, 3000),
        ("stall: first touch", "new pages", "B", 6500, 6500),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["base_uvm", "deepum", "g10", "g10_gds", "pressure"])
def test_every_stall_on_data_has_its_flow(policy):
    result, viewer = timeline(chain(12), SYSTEM, policy)
    on_data = ("fault_", "first_touch", "late_prefetch", "eviction")
    waited = [
        kernel
        for kernel in result.records.kernels
        if any(cycles and reason.startswith(on_data) for reason, cycles in kernel.stalls)
    ]
    assert len(waited) == len(viewer.flows) > 0


def test_counters_show_memory_and_links():
    result, viewer = timeline(chain(8), SYSTEM, "base_uvm")
    memory = viewer.counters["GPU 0", "GPU memory in use"]
    assert max(value for _, value in memory) * 2**30 == pytest.approx(
        result.memory["gpu_bytes"].max(), abs=2**10
    )
    host = viewer.counters["memory system", "host memory in use"]
    assert max(value for _, value in host) == 4 / 1024
    links = {name for process, name in viewer.counters if name.startswith("utilization")}
    assert links == {
        f"utilization of {link}"
        for link in ("SSD read", "SSD write", "GPU 0 in", "GPU 0 out", "GPU 0 page mapping")
    }
    for name in links:
        values = viewer.counters["memory system", name]
        assert all(0 <= value <= 100 for _, value in values)
        assert values[-1][1] == 0
        assert values == sorted(values, key=lambda point: point[0])


def test_jobs_that_share_a_gpu_have_rows_of_their_own():
    system = {**SYSTEM, "gpu": {"memory": "8 MiB", "count": 2}}
    jobs = Workload((Job(chain(4)), Job(chain(5)), Job(chain(3), gpu=1)))
    _, viewer = timeline(jobs, system, "base_uvm")
    rows = {row for row in viewer.slices if row[1].startswith("kernels")}
    assert rows == {("GPU 0", "kernels, job 0"), ("GPU 0", "kernels, job 1"), ("GPU 1", "kernels")}
    assert len(viewer.slices["GPU 0", "kernels, job 1"]) == 2 * len(chain(5).kernels)


def test_designs_that_copy_whole_tensors_have_no_page_faults():
    _, viewer = timeline(chain(8), SYSTEM, "g10_gds")
    assert not viewer.instants
    assert "page faults" not in {row for _, row in viewer.slices}


def test_transfers_of_one_direction_share_a_row_unless_they_overlap():
    trace, system = chain(4), g10sim.system("a100-40g-pcie3-znand")
    spans = [(0, 10), (10, 20), (15, 30), (30, 40)]
    moves = tuple(
        MigrationRecord(0, tensor, HOST, Location.GPU, MigrationCause.PREFETCH, start, end, 4096)
        for tensor, (start, end) in enumerate(spans)
    )
    document = chrome_trace(Workload((Job(trace),)), system, RunRecords((), migrations=moves))
    shown = Viewer(json.dumps(document)).slices
    found = {row: [event["args"]["tensor"] for event in events] for (_, row), events in shown.items()}
    assert found == {"host to GPU": [0, 1, 3], "host to GPU (2)": [2]}


def test_kernels_on_the_cpu_have_a_row_of_their_own():
    trace = chain(3)
    kernels = [
        replace(kernel, device=Device.CPU if kernel.id == 4 else Device.GPU) for kernel in trace.kernels
    ]
    system = g10sim.system("a100-40g-pcie3-znand", cpu={"optimizer_rate": "4 G/s"})
    found, viewer = timeline(replace(trace, kernels=tuple(kernels)), system, "base_uvm")
    on_cpu = viewer.slices["GPU 0", "kernels on the CPU"]
    assert [one["args"]["iteration"] for one in on_cpu] == list(range(len(found.records.iterations)))
    names = [one["name"] for one in viewer.slices["GPU 0", "kernels"]]
    assert len(names) == len(on_cpu) * (len(kernels) - 1)


def test_collectives_have_a_row_of_their_own():
    trace = Transformer(2, 256, sequence=64, batch=1, flops_per_second=1e12, bytes_per_second=1e12).trace()
    system = g10sim.system("8xa100-40g-nvswitch-node", cpu={"optimizer_rate": "4 G/s"})
    workload = Workload((Job(trace), Job(trace, gpu=1)), exchange=ExchangeSpec())
    policy = ZeroInfinity(param_persistence_threshold=0)
    records = run(workload, system, policy, record=("timeline",))
    shown = Viewer(json.dumps(chrome_trace(as_recorded(workload, system, policy), system, records))).slices
    for gpu in ("GPU 0", "GPU 1"):
        # In each of two iterations eight weights come and stay, and one bucket has all gradients.
        names = Counter(one["name"] for one in shown[gpu, "collectives"])
        assert names == {"All-gather": 2 * 8, "Reduce-scatter": 2}
        spans = [(one["ts"], one["ts"] + one["dur"]) for one in shown[gpu, "collectives"]]
        assert all(one[1] <= other[0] for one, other in pairwise(sorted(spans)))
        assert {"All-gather", "Reduce-scatter"}.isdisjoint(one["name"] for one in shown[gpu, "kernels"])


def test_utilization_worked_out_by_hand():
    system = g10sim.system("a100-40g-pcie3-znand")
    traffic = [
        TrafficRecord(0, FLASH, Location.GPU, 7000, 8000, 2000),
        TrafficRecord(0, HOST, Location.GPU, 7500, 8500, 1000),
        TrafficRecord(0, Location.GPU, Location.NONE, 0, 10, 4096),
    ]
    found = {
        link.name: [(one.start, one.end, one.size_bytes) for one in stretches]
        for link, stretches in link_traffic(system, traffic, 1)
    }
    assert found == {
        "SSD read": [(7000, 8000, 2000)],
        "GPU 0 in": [(7000, 7500, 1000), (7500, 8000, 1500), (8000, 8500, 500)],
    }
    merged = {
        shortest: [(one.start, one.end, one.size_bytes) for one in stretches]
        for shortest in (500, 600)
        for link, stretches in link_traffic(system, traffic, shortest)
        if link.name == "GPU 0 in"
    }
    assert merged == {500: found["GPU 0 in"], 600: [(7000, 8000, 2500), (8000, 8500, 500)]}


def test_the_utilization_of_a_link_is_its_share_of_what_it_can_carry():
    system = machine(pcie="1 GB/s", read="0.5 GB/s")
    traffic = (
        TrafficRecord(0, FLASH, Location.GPU, 0, 100_000, 25_000),
        TrafficRecord(0, FLASH, Location.GPU, 100_000, 300_000, 100_000),
    )
    document = chrome_trace(Workload((Job(chain(2)),)), system, RunRecords((), traffic=traffic))
    counters = Viewer(json.dumps(document)).counters
    assert counters["memory system", "utilization of GPU 0 in"] == [(0, 25), (100, 50), (300, 0)]
    assert counters["memory system", "utilization of SSD read"] == [(0, 50), (100, 100), (300, 0)]


def test_slices_that_meet_in_cycles_meet_in_the_file():
    events = TraceEvents(clock_hz=1_410_000_000)
    for cycle in range(0, 7000, 7):
        events.slice(("p", "r"), "s", cycle, cycle + 7)
    found = events.document({})["traceEvents"][4:]
    assert sum(nanoseconds(event["dur"]) for event in found) == rounded(7000, 1_410_000_000)
    for one, two in pairwise(found):
        assert nanoseconds(one["ts"]) + nanoseconds(one["dur"]) == nanoseconds(two["ts"])
