"""Parts that thousands of cells and results have in common are held once."""

import pickle

from g10sim.config.load import load_run
from g10sim.experiment.cells import CellResult, EqualParts
from g10sim.experiment.expand import expand
from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain


def test_results_that_arrive_share_what_is_equal_and_say_the_same():
    origin = {"key": "a" * 64, "libraries": {"numpy": "2", "simpy": "4"}, "files": {}}
    sent = CellResult("ok", "", ({"exec_cycles": 5, "status_of_bound": "link"},), {"worker": 0}, origin)
    parts = EqualParts()
    first, second = (parts.shared(pickle.loads(pickle.dumps(sent))) for _ in range(2))
    assert first == second == sent
    assert first.origin["libraries"] is second.origin["libraries"]
    assert [*map(id, first.rows[0])] == [*map(id, second.rows[0])]


def test_cells_of_a_sweep_share_the_parts_of_the_system_that_are_alike(tmp_path):
    save_trace(chain(2), tmp_path / "tiny.g10t")
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "workload: {trace: tiny.g10t}\nsystem: a100-40g-pcie3-znand\npolicies: [base_uvm]\n"
        "sweep: {system.gpu.memory: [1 GiB, 2 GiB]}\n"
    )
    one, other = (cell.system for cell in expand(load_run(path)).cells)
    assert (one.gpu.memory, other.gpu.memory) == (1 << 30, 2 << 30)
    assert one.host is other.host
    assert one.sources is other.sources
