"""What statistics say about one cell on each machine, kept in ``cells/statistics.json``."""

from recorded_cells import cells_of, checksum, machine_for, workload_of
from recorded_machines import MACHINES

from g10sim.experiment.execution import simulate
from g10sim.policies.interface.registry import create
from g10sim.results.blame import by_main_reason, link_traffic, link_use, tensor_waits, within
from g10sim.results.reading import busy_share, covered_until, of_cell, reported_kernels
from g10sim.results.tables import TABLES, TRACE_TABLES, records_table
from g10sim.results.timeline import chrome_trace

TABLE = "statistics"


POLICIES = (
    *("autoswap", "base_uvm", "capuchin", "deepum", "g10", "g10_host", "g10_paced", "in_place", "pressure"),
    *("tensile", "vdnn_multi"),
)
"""A machine after the other is looked at under one of them."""


def cell_on(machine):
    """Return the cell whose statistics are kept for a machine: of designs that run on all, in turn."""
    policy = POLICIES[list(MACHINES).index(machine) % len(POLICIES)]
    if policy == "in_place" and machine not in ("in_place", "one_tier"):
        policy = "pressure"  # where kernels can access no tier
    return cells_of(policy, machine)[0]


def statistics(machine):
    """Return the waits and links of the first job's reported iteration, and checksums of tables."""
    cell, parameters = cell_on(machine)
    copies = create(cell.policy).requirements.placement == "contiguous"
    workload = workload_of(cell.workload)
    system, behaviour = machine_for(cell.machine, workload, copies=copies)
    policy = create({"name": cell.policy, **parameters})
    records, rows = simulate(workload, system, policy, behaviour, tables=("timeline",))
    tables = {name: records_table(name, records) for name in TABLES}
    row = {**rows[0], "job": 0}
    kernels = reported_kernels(of_cell(tables["kernels"], row), row)
    start, end = int(kernels["start"].min()), int(kernels["end"].max())
    moves = within(of_cell(tables["migrations"], row), start, end)
    waits = tensor_waits(kernels, moves, [kernel.tensors for kernel in workload.jobs[0].trace.kernels])
    groups = by_main_reason(kernels)
    edges = [start + (end - start) * part / 7 for part in range(8)]
    traffic = {
        link.name: [vars(part) for part in stretches]
        for link, stretches in link_traffic(system, records.traffic, (end - start) // 50)
    }
    everything = {
        **{name: table.to_dict("list") for name, table in tables.items()},
        **{
            name: make(workload.jobs, system.gpu.clock).to_dict("list") for name, make in TRACE_TABLES.items()
        },
        "timeline": chrome_trace(workload, system, records)["traceEvents"],
        "traffic": traffic,
        "waits": waits.reset_index().to_dict("list"),
        "links": [vars(use) for use in link_use(kernels, moves, system, kernels)],
        "covered": covered_until(kernels[["start", "end"]].to_numpy(), moves["start"], moves["end"]).tolist(),
    }
    return {
        "cell": f"{cell.policy} | {cell.name}",
        "stalls": {str(reason): int(group["stall_cycles"].sum()) for reason, group in groups.items()},
        "stalled_kernels": {str(reason): group["kernel"].tolist() for reason, group in groups.items()},
        "waited": {str(tensor): round(cycles) for tensor, cycles in waits["waited_cycles"].items()},
        "busy": [round(share, 6) for share in busy_share(moves["start"], moves["end"], edges)],
        "checksums": {name: checksum(value) for name, value in everything.items()},
    }
