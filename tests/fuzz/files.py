"""Damaged files of every kind that is read: they are read as what they say, or refused cleanly."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import yaml
from binary import (
    report_of_processes,
    report_text,
    snapshot_text,
    snapshot_with_gaps,
    snapshot_without_times,
    write_database,
    write_snapshot,
)
from damage import damaged, packed, unpacked
from recordings import (
    drives,
    earlier_execution_trace,
    execution_trace,
    measured_link,
    profile,
    profile_of_graphs,
    published,
)

from g10sim.analysis.gpus import load_gpu
from g10sim.config.document import load_document
from g10sim.config.presets import load_system, ssd_names
from g10sim.errors import G10SimError
from g10sim.experiment.expand import expand
from g10sim.importers.execution_trace import import_execution_trace
from g10sim.importers.gpg import import_gpg
from g10sim.importers.kineto import import_kineto
from g10sim.importers.kineto_events import read_profile
from g10sim.importers.nsight import import_nsight, read_report
from g10sim.importers.nvbandwidth import read_link
from g10sim.importers.snapshot import import_snapshot, read_snapshot, replay
from g10sim.policies.interface.moves import Await, Evict, Fetch
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.plan_format import load_plan, save_plan
from g10sim.policies.interface.registry import create
from g10sim.sim.engine import run
from g10sim.trace.check import check_trace
from g10sim.trace.format import load_trace, save_trace
from g10sim.trace.synthetic import chain
from g10sim.trace.work import KernelCost, OperatorClass
from g10sim.trace.workload import Job, Workload

CONFIGURATION = {
    "name": "fuzz",
    "workload": {
        "jobs": [{"trace": "chain.g10t", "arrival": "1 ms", "copies": 2}],
        "sharing": {"compute": "concurrent"},
    },
    "system": {
        "preset": "a100-40g-pcie3-znand",
        "gpu": {"memory": "8 MiB", "count": 2},
        "host": {"memory": "4 MiB", "memory_bandwidth": "100 GB/s"},
        "pcie": {"shared": [{"name": "up", "gpus": [0, 1], "bandwidth": "16 GB/s"}], "service": "deadline"},
    },
    "policies": ["ideal", {"name": "g10", "safety_margin": 2.0}, {"name": "deepum", "look_ahead": 4}],
    "sweep": {"system.host.memory": ["0 GiB", "4 MiB"]},
    "seed": [0, 1],
    "record": ["summary", "kernels"],
    "compat": {"recency": "use"},
}
PACKED = {"trace", "plan", "profile", "execution trace", "published trace"}
WRITERS = {"memory snapshot": write_snapshot, "Nsight report": write_database}


class Samples:
    """Valid files in a directory, as text, to be damaged."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        trace = chain(4)
        save_trace(trace, directory / "chain.g10t")
        moves = [Planned(2, Evict(1)), Planned(6, Fetch(1)), Planned(6, Await(frozenset({1})), 5)]
        save_plan(MigrationPlan.ordered(moves), directory / "chain.g10p", trace)
        (directory / "chain.json").write_text(profile())
        (directory / "8").mkdir()
        system = load_system({"preset": "4xa100-40g-pcie4-shared", "gpu": {"memory": "8 MiB"}})
        gpu = load_gpu("a100-40g-g10").model_dump(mode="json", exclude_none=True)
        texts = {
            "trace": {"bad.g10t": unpacked(directory / "chain.g10t")},
            "plan": {"bad.g10p": unpacked(directory / "chain.g10p")},
            "configuration": {"bad.yaml": yaml.safe_dump(CONFIGURATION, sort_keys=False)},
            "profile": {
                "bad.json": profile(),
                "worse.json": profile(on_device=False),
                "graphs.json": profile_of_graphs(),
            },
            "execution trace": {"bad.json": execution_trace(), "worse.json": earlier_execution_trace()},
            "published trace": {f"8/{name}": text for name, text in published().items()},
            "system": {"bad.yaml": yaml.safe_dump(system.model_dump(mode="json"), sort_keys=False)},
            "GPU": {"bad.yaml": yaml.safe_dump(gpu, sort_keys=False)},
            "SSD": {"bad.yaml": drives(), **_ssds()},
            "measured link": {"bad.json": measured_link()},
            "memory snapshot": {
                "bad.pickle": snapshot_text(),
                "gaps.pickle": snapshot_with_gaps(),
                "order.pickle": snapshot_without_times(),
            },
            "Nsight report": {"bad.sqlite": report_text(), "worse.sqlite": report_of_processes()},
        }
        self.texts: dict[str, dict[str, str]] = texts

    def outcome(self, kind: str, seed: int) -> str:
        """Damage a file and read it: ``read`` or ``refused``. Raises whatever must not happen."""
        draw = random.Random(f"{kind} {seed}")
        names = sorted(self.texts[kind])
        bad = draw.choice(names)
        for name in names if kind == "published trace" else [bad]:
            (self.directory / name).write_text(self.texts[kind][name])
        text = self.texts[kind][bad]
        if draw.random() < 0.8:  # without its hash a damage is not noticed by that alone
            text = re.sub(r'"sha256":"[0-9a-f]*",?', "", text)
        data = damaged(text, draw)
        path = self.directory / bad
        if kind in WRITERS:
            WRITERS[kind](path, data, draw)
        else:
            path.write_bytes(packed(data, draw) if kind in PACKED else data)
        try:
            READERS[kind](path)
        except G10SimError as refusal:
            text = str(refusal)
            assert text, "an empty message"
            assert len(text) < 2000, f"a message of {len(text)} characters"
            assert text.isprintable(), f"a message that is not one printable line: {text!r}"
            return "refused"
        return "read"


def _ssds() -> dict[str, str]:
    """Return a system with each SSD preset, written out."""
    base = {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "8 MiB"}}
    systems = {name: load_system({**base, "ssd": {"preset": name}}) for name in ssd_names()}
    return {
        f"{name}.yaml": yaml.safe_dump(system.model_dump(mode="json"), sort_keys=False)
        for name, system in systems.items()
    }


def _configuration(path: Path) -> None:
    """Read a configuration, with small numbers of cells only."""
    document = load_document(path)
    sweep = document.data.get("sweep")
    values = list(sweep.values()) if isinstance(sweep, dict) else []
    if any(isinstance(entry, list) and len(entry) > 50 for entry in values):
        return
    expand(document)


def _profile(path: Path) -> None:
    """Read a profile as a trace, and as the times of an execution trace."""
    read = read_profile(path)
    undamaged = path.with_name("execution.json")
    undamaged.write_text(execution_trace())
    try:
        import_execution_trace(undamaged, profile=read)
    finally:
        import_kineto(read, partial=True, keep_gaps=True)


def _execution_trace(path: Path) -> None:
    import_execution_trace(path, price=lambda cost: cost.moved_bytes)
    import_execution_trace(path, profile=read_profile(path.with_name("chain.json")))


def _snapshot(path: Path) -> None:
    """Read a memory snapshot, replay it through the allocators, and import it as a trace."""
    read = read_snapshot(path)
    try:
        replay(read)
    finally:
        import_snapshot(read, model=None, batch_size=1)


def _system(path: Path) -> None:
    """Read a system, and run a small trace on it."""
    system = load_system(load_document(path).data)
    run(Workload((Job(chain(2), iterations=1),)), system, create("base_uvm"))


def _gpu(path: Path) -> None:
    """Read a GPU, and ask it for the time of a kernel of every class."""
    gpu = load_gpu(path)
    for operators in OperatorClass:
        gpu.duration_ns(KernelCost("addmm", operators, flops=1000, moved_bytes=1000))


READERS: dict[str, Callable[[Path], object]] = {
    "trace": lambda path: check_trace(load_trace(path)),
    "plan": lambda path: load_plan(path, load_trace(path.with_name("chain.g10t"))),
    "configuration": _configuration,
    "profile": _profile,
    "execution trace": _execution_trace,
    "published trace": lambda path: import_gpg(path.parent, "net"),
    "system": _system,
    "GPU": _gpu,
    "SSD": _system,
    "measured link": lambda path: read_link(path, "copy").preset("a100-40g-pcie3-znand", "mine"),
    "memory snapshot": _snapshot,
    "Nsight report": lambda path: import_nsight(read_report(path), model=None, batch_size=1),
}
"""Readers of the files of each kind."""
