"""Designs that copy whole tensors: timelines worked out by hand on the machines of ``machines``.

A page crosses PCIe in 1000 cycles, comes from flash in 2000 and goes there in 4000; each copy from or to
flash waits 2000 cycles, once. Rates are whole bytes/second, which may make a copy a cycle longer: ``near``.
"""

import dataclasses

import pytest
from machines import PAGE, FollowPlan, iteration_times, kernel_times, machine, planned, simulate, trace_of
from memories import FLASH, GPU, HOST, flash_pool, host_pool

from g10sim.config.behaviour import GPG, BehaviourSpec
from g10sim.errors import CapacityError, ConfigError, InvariantError, PolicyError, UnsupportedError
from g10sim.hardware.gpu_memory.allocators.space import ContiguousSpace
from g10sim.hardware.gpu_memory.contiguous import Contiguous
from g10sim.hardware.gpu_memory.layout import Blocks
from g10sim.hardware.gpu_memory.placement import first_fit_left
from g10sim.hardware.host_memory.host_buffers import HostBuffers, HostMemory
from g10sim.hardware.pools import Door
from g10sim.policies.designs.direct_storage import G10Gds, G10Host
from g10sim.policies.designs.flashneuron import FlashNeuron, index_bytes
from g10sim.policies.interface.moves import Await, Evict, Fetch, Free
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.plan_format import save_plan
from g10sim.policies.interface.policy import Compressed, Place, Policy, Requirements
from g10sim.policies.interface.registry import create, find
from g10sim.records import MigrationCause, StallReason
from g10sim.sim.accounts.recorder import check_conservation
from g10sim.trace.model import Phase, TensorKind
from g10sim.trace.workload import Job, Workload


class Copies(FollowPlan):
    """A plan carried out by copies of whole tensors."""

    name = "copies"
    requirements = Requirements(placement="contiguous")


def stalls(records, iteration=0):
    return [dict(kernel.stalls) for kernel in records.kernels if kernel.iteration == iteration]


def near(value):
    return pytest.approx(value, abs=2)


def moves(records):
    return [
        (record.tensor, record.source, record.target, record.start, record.end)
        for record in records.migrations
    ]


def chain(b=2):
    """a (4 pages) is made, two kernels do without it, the last one reads it."""
    tensors = {"a": 4, "b": b, "c": 2, "d": 2}
    kernels = [(10_000, "", "a"), (30_000, "", "b"), (20_000, "b", "c"), (10_000, "a c", "d")]
    return trace_of(tensors, kernels)


def with_backward_from(trace, first):
    kernels = [
        dataclasses.replace(kernel, phase=Phase.FORWARD if kernel.id < first else Phase.BACKWARD)
        for kernel in trace.kernels
    ]
    return dataclasses.replace(trace, kernels=tuple(kernels))


def test_what_is_born_needs_no_time_and_dies_with_its_last_reader():
    records = simulate(chain(), machine(8), Copies())
    assert iteration_times(records) == [70_000, 70_000]
    assert records.iterations[0].peak_gpu_bytes == 8 * PAGE
    assert [kernel.gpu_pages for kernel in records.kernels] == [4, 6, 6, 0] * 2
    assert records.iterations[0].page_faults == 0


def test_weights_that_do_not_fit_begin_in_the_last_tier_with_room():
    trace = trace_of({"a*": 3, "b*": 3, "c": 1}, [(10_000, "a", "c"), (50_000, "c", "c"), (1000, "b c", "")])
    plan = Copies(moves=[(1, 0, HOST), (1, 1, GPU)])
    records = simulate(trace, machine(4, flash_pages=0), plan, record=("migrations",), iterations=1)
    assert (1, HOST, GPU) in [move[:3] for move in moves(records)]


def test_space_is_given_back_when_the_offload_is_complete():
    # b (6 of 8 pages) has to wait until a has left, 2000 + 4 * 4000 cycles after kernel 1 began.
    policy = Copies(moves=[(1, 0, FLASH), (3, 0, GPU)])
    records = simulate(chain(6), machine(8), policy, record=("kernels", "migrations"))
    assert kernel_times(records) == near([10_000, 18_000 + 30_000, 20_000, 10_000 + 10_000])
    assert stalls(records)[1] == near({StallReason.ALLOCATION: 18_000})
    # a comes back in 2000 + 4 * 2000.
    assert stalls(records)[3] == near({StallReason.LATE_PREFETCH: 10_000})
    assert moves(records)[0] == near((0, GPU, FLASH, 10_000, 28_000))


def test_prefetch_overlaps_with_computing():
    policy = Copies(moves=[(1, 0, FLASH), (2, 0, GPU)])
    records = simulate(chain(), machine(8), policy)
    assert kernel_times(records) == [10_000, 30_000, 20_000, 10_000]
    iteration = records.iterations[0]
    assert (iteration.traffic["gpu_to_ssd_bytes"], iteration.traffic["ssd_to_gpu_bytes"]) == (
        4 * PAGE,
        4 * PAGE,
    )
    # Out: 18,000 cycles of kernel 1, in: 10,000 of kernel 2.
    assert iteration.overlap_cycles == near(28_000)
    assert iteration.stalls == ()


def test_copies_of_one_direction_and_place_go_one_at_a_time():
    trace = trace_of(
        {"a": 2, "b": 2, "c": 2}, [(1000, "", "a b c"), (50_000, "", ""), (1000, "a b c", "")], "queue"
    )
    policy = Copies(moves=[(1, 0, FLASH), (1, 1, FLASH), (1, 2, HOST)])
    records = simulate(trace, machine(6), policy, record=("kernels", "migrations"), iterations=1)
    out = {tensor: (start, end) for tensor, _, target, start, end in moves(records) if target is not GPU}
    assert out[0][1] == near(11_000)
    assert out[1] == near((11_000, 21_000))
    # a leaves at 0.2 bytes/cycle, latency included; the copy to the host has the other 0.8 of the link.
    assert out[2] == near((1000, 3500))


def test_a_request_that_does_not_fit_holds_up_those_behind_it():
    # p (4 pages) waits for room that never comes before kernel 2; q (1 page) would fit.
    trace = trace_of(
        {"p": 4, "q": 1, "big": 3},
        [(1000, "", "p q"), (50_000, "", "big"), (50_000, "big", ""), (1000, "p q", "")],
        "fifo",
    )
    policy = Copies(moves=[(1, 0, FLASH), (1, 1, FLASH), (2, 0, GPU), (2, 1, GPU)])
    records = simulate(trace, machine(6), policy, record=("kernels", "migrations"), iterations=1)
    back = {tensor: start for tensor, _, target, start, _ in moves(records) if target is GPU and _ > 60_000}
    death_of_big = sum(kernel_times(records)[:3])
    assert back[0] == death_of_big
    assert back[1] >= back[0]


def test_fragmentation_is_real_and_a_wait_without_end_says_what_holds_the_memory():
    # Three pages in two pieces are free when d (3 pages) is born between b and nothing.
    trace = trace_of(
        {"a": 2, "b": 2, "c": 1, "d": 3},
        [(1000, "", "a b c"), (1000, "a c", ""), (1000, "b", "d"), (1000, "b d", "")],
        "pieces",
    )
    with pytest.raises(UnsupportedError) as error:
        simulate(trace, machine(5), Copies())
    assert str(error.value) == (
        "policy 'copies', kernel 2 (Kernel2) of 'pieces': tensor 'd' needs 3 kB of consecutive GPU memory; "
        "the largest hole has 2 kB, 3 kB are free, and nothing under way frees more (held by b 2 kB)"
    )
    # Unified memory of the same size takes any free pages.
    assert simulate(trace, machine(5), FollowPlan()).iterations


def test_a_needed_tensor_on_its_way_out_is_recalled():
    policy = Copies(moves=[(2, 0, FLASH)])
    records = simulate(chain(), machine(10), policy, record=("kernels", "migrations"))
    # 18,000 cycles to leave, 20,000 until it is needed: it has left, and is demanded.
    assert stalls(records)[3] == near({StallReason.FAULT_FLASH: 10_000})
    slow = machine(10, write="0.2 GB/s")
    records = simulate(chain(), slow, policy, record=("kernels", "migrations"))
    # 22,000 to leave: recalled after most of it was copied in vain.
    assert kernel_times(records)[3] == 10_000
    assert records.iterations[0].traffic["gpu_to_ssd_bytes"] == 3 * PAGE
    assert records.iterations[0].traffic["ssd_to_gpu_bytes"] == 0


def test_the_published_way_uses_it_and_lets_it_leave():
    published = GPG.model_copy(update={"copy_gigabyte": "decimal"})
    records = simulate(chain(), machine(10, write="0.1 GB/s"), Copies(moves=[(2, 0, FLASH)]), published)
    assert len(records.iterations) == 1
    assert kernel_times(records) == [10_000, 30_000, 20_000, 10_000]
    # A page leaves every 10,000 cycles from 40,000 on: the third one while kernel 3 uses the tensor.
    assert records.iterations[0].traffic["gpu_to_ssd_bytes"] == 3 * PAGE


@pytest.mark.parametrize(("name", "waits"), [("x", [30_000, 0, 40_000]), ("x*", [0, 0, 0])])
def test_the_published_way_reads_what_is_prefetched_while_it_leaves(name, waits):
    # x (20 pages) leaves from 10,000 to 90,000. Prefetched at 40,000, all of it is read from flash, until
    # 80,000; kernel 3 (at 50,000) waits for that, kernel 4 (at 85,000) uses what is leaving, and kernel 5
    # finds it gone all the same. Of weights such prefetches are dropped, and kernels run without them.
    reads = [(5000, "x", ""), (20_000, "x", ""), (20_000, "x", "")]
    trace = trace_of({name: 20}, [(10_000, "", "x"), (30_000, "", ""), (10_000, "", ""), *reads])
    published = GPG.model_copy(update={"copy_gigabyte": "decimal"})
    policy = Copies(moves=[(1, 0, FLASH), (2, 0, GPU)])
    records = simulate(trace, machine(50), policy, published)
    assert [sum(found.values()) for found in stalls(records)[3:]] == waits


def test_the_published_way_then_takes_it_for_stored_on_flash():
    # x (20 pages) goes to the host from 10,000 on at 0.75 bytes/cycle, is prefetched at 15,000, and gone at
    # 36,667. Kernel 3 demands it at 55,000, at the rate of flash.
    trace = trace_of({"x": 20}, [(10_000, "", "x"), (5000, "", ""), (40_000, "", ""), (10_000, "x", "")])
    published = GPG.model_copy(update={"copy_gigabyte": "decimal"})
    records = simulate(trace, machine(50), Copies(moves=[(1, 0, HOST), (2, 0, GPU)]), published)
    assert stalls(records)[3] == near({StallReason.FAULT_FLASH: 40_000})


def test_published_copies_have_a_multiple_of_the_memory():
    class Quadruple(Copies):
        requirements = dataclasses.replace(Copies.requirements, published_memory_factor=4)

    trace = trace_of({"w*": 30}, [(10_000, "w", "")])
    assert simulate(trace, machine(10), Quadruple(), GPG).iterations[0].peak_gpu_bytes == 30 * PAGE
    with pytest.raises(CapacityError, match="working set of 30 kB; allowed: at most the GPU memory, 10 kB"):
        simulate(trace, machine(10), Quadruple(), GPG.model_copy(update={"copy_memory": "system"}))


def test_published_rates_have_no_latency_and_split_the_link():
    published = GPG.model_copy(update={"copy_gigabyte": "decimal"})
    trace = trace_of({"a": 4, "b": 4}, [(10_000, "", "a b"), (100_000, "", ""), (10_000, "a b", "")])
    policy = Copies(moves=[(1, 0, FLASH), (1, 1, HOST)])
    records = simulate(trace, machine(10), policy, published, record=("kernels", "migrations"))
    out = {tensor: end - start for tensor, source, _, start, end in moves(records) if source is GPU}
    # 0.25 of 1 byte/cycle to flash; the host always has the other 0.75.
    assert out[0] == 16_000
    assert abs(out[1] - 4 * PAGE / 0.75) < 2


def test_published_gigabytes_are_larger():
    policy = Copies(moves=[(1, 0, FLASH)])
    records = simulate(chain(), machine(10), policy, GPG, record=("migrations",))
    (left,) = (end - start for _, source, _, start, end in moves(records) if source is GPU)
    assert left == -(-16_000 * 10**9 // 2**30)


def test_synchronize_waits_for_evictions():
    class Waits(Copies):
        def on_kernel_start(self, view):
            return [Await()] if view.kernel == 2 else []

    slow = machine(10, write="0.1 GB/s")
    records = simulate(chain(), slow, Waits(moves=[(1, 0, FLASH)]))
    # 2000 + 40,000 cycles to leave, 30,000 of them while kernel 1 computes.
    assert stalls(records)[2] == near({StallReason.SYNCHRONIZATION: 12_000})


def test_synchronize_waits_in_unified_memory_too_and_only_for_what_it_names():
    class Waits(Policy):
        name = "waits"

        def __init__(self, which):
            self.which = which

        def on_kernel_start(self, view):
            if view.kernel == 1:
                return [Evict(0, "ssd")]
            return [Await(self.which)] if view.kernel == 2 else []

    slow = machine(12, write="0.1 GB/s")
    everything = stalls(simulate(chain(), slow, Waits(None), iterations=1))[2]
    # Four pages leave in 40,000 cycles; kernel 1 takes 30,000 and first touches 2 * 2000.
    assert everything[StallReason.SYNCHRONIZATION] == 6000
    assert stalls(simulate(chain(), slow, Waits(frozenset({0})), iterations=1))[2] == everything
    assert (
        StallReason.SYNCHRONIZATION
        not in stalls(simulate(chain(), slow, Waits(frozenset({1})), iterations=1))[2]
    )


def test_a_policy_may_make_room_where_the_plan_does_not():
    class MakesRoom(Copies):
        def on_out_of_memory(self, view):
            assert view.largest_hole_bytes < view.size_bytes(1)
            return [Evict(0)]

    with pytest.raises(UnsupportedError, match=r"kernel 1 .* tensor 'b' needs 6 kB"):
        simulate(chain(6), machine(8), Copies())
    records = simulate(chain(6), machine(8), MakesRoom())
    assert stalls(records)[1] == near({StallReason.ALLOCATION: 4000})


@pytest.mark.parametrize("memory", ["paged", "contiguous"])
def test_dead_tensors_are_freed_while_they_come_back(memory):
    class FreesWhatComes(Policy):
        requirements = Requirements(placement=memory, addresses="own")

        def on_kernel_start(self, view):
            return {1: [Fetch(1)], 2: [Evict(1)], 3: [Fetch(1), Free(1)]}.get(view.kernel)

        def on_kernel_end(self, view):
            if view.kernel == 4 and memory == "contiguous":
                assert (view.free_bytes, view.bytes_in(1, "host")) == (4 * PAGE, 0)

    trace = trace_of({"w*": 2, "a": 2}, [(5000, "w", "a"), *[(5000, "w", "")] * 4])
    simulate(trace, machine(6), FreesWhatComes())


def test_hooks_that_answer_too_little_are_refused():
    class ForgetsPlaces(Copies):
        def places(self, job, plan, behaviour):
            return ()

    class ForgetsTensors(Copies):
        def allocation_order(self, kernel):
            return kernel.tensors[1:]

    with pytest.raises(PolicyError, match="places returned 0 places; allowed: one per tensor, 4"):
        simulate(chain(), machine(10), ForgetsPlaces())
    with pytest.raises(PolicyError, match="kernel 0: allocation_order leaves out tensor 'a'"):
        simulate(chain(), machine(10), ForgetsTensors())


def test_conservation_notices_a_block_without_contents():
    blocks = Blocks(
        sizes=[2, 3],
        allocator=ContiguousSpace(10),
        rules=[first_fit_left] * 2,
        copy_rate=lambda pages, place, leaves: 1,
        recalls=True,
        buffers=HostBuffers(HostMemory(machine().host, 10**9), PAGE, keeps=False),
        staged=HOST,
    )
    memory = Contiguous(PAGE, [host_pool(10, PAGE), flash_pool(10, PAGE)], Door(), blocks)
    memory.place(0, GPU)
    memory.place(1, FLASH)
    check_conservation(memory, "start")
    memory.blocks.allocate(1)
    with pytest.raises(InvariantError, match="tensor 1: its pages and its block of GPU memory disagree"):
        check_conservation(memory, "then")


def network(forward=3):
    """Activations x0 .. of 4 pages made in turn and read in reverse by the backward pass; one weight."""
    tensors = {"w*": 1} | {f"x{i}": 4 for i in range(forward)} | {"g": 1}
    kernels = [(20_000, f"w x{i - 1}" if i else "w", f"x{i}") for i in range(forward)]
    kernels += [(20_000, f"w x{i}", "g") for i in reversed(range(forward))]
    return with_backward_from(trace_of(tensors, kernels, "net"), forward)


def test_flashneuron_keeps_everything_when_there_is_room():
    records = simulate(network(), machine(100), FlashNeuron())
    assert iteration_times(records) == [120_000, 120_000]
    assert records.iterations[1].traffic["gpu_to_ssd_bytes"] == 0


def test_flashneuron_offloads_in_order_of_first_use_until_the_rest_is_under_the_line():
    # Line: 21 pages less 1 (w) less 9 (w, x0 and x1) = 11, and x0, x1, x2 take 12.
    trace, system = network(), machine(21)
    (plan,) = FlashNeuron().plan(Workload((Job(trace),)), system, BehaviourSpec())
    # x0 is idle from kernel 2, after x1 was made from it, until its backward kernel.
    assert plan.moves == (planned(2, 1, FLASH),)
    records = simulate(trace, system, FlashNeuron(), record=("kernels", "migrations"))
    out = [move for move in moves(records) if move[2] is FLASH]
    # 2000 + 4 * 4000 from the start of kernel 2.
    assert out[0] == near((1, GPU, FLASH, 40_000, 58_000))
    assert iteration_times(records) == [120_000, 120_000]


def test_flashneuron_waits_for_all_offloads_before_the_backward_pass():
    slow = machine(21, write="0.1 GB/s")
    records = simulate(network(), slow, FlashNeuron())
    # 2000 + 40,000 cycles, 20,000 of them during kernel 2.
    assert stalls(records)[3] == near({StallReason.SYNCHRONIZATION: 22_000})


def test_flashneuron_fetches_ahead_into_the_largest_hole():
    records = simulate(network(), machine(21), FlashNeuron(), record=("kernels", "migrations"))
    fetched = [move for move in moves(records) if move[1] is FLASH and move[0] == 1]
    # After the first backward kernel: 2000 + 4 * 2000 cycles, long before it is needed at 100,000.
    assert fetched[0] == near((1, FLASH, GPU, 80_000, 90_000))


def test_flashneuron_fetches_what_the_very_next_kernel_needs():
    # x0 is idle while x2 is made, and read by the second backward kernel.
    tensors = {"w*": 1, "x0": 4, "x1": 4, "x2": 4, "g": 1}
    kernels = [("w", "x0"), ("w x0", "x1"), ("w x1", "x2"), ("w x2 x1", "g"), ("w x0", "g")]
    trace = trace_of(tensors, [(20_000, *names) for names in kernels], "net")
    records = simulate(with_backward_from(trace, 3), machine(21), FlashNeuron())
    assert stalls(records) == [{}, {}, {}, {}, near({StallReason.LATE_PREFETCH: 10_000})]


def rectified(trace, *kernels):
    """The same trace with these kernels as ReLUs."""
    named = [
        dataclasses.replace(kernel, name="relu_") if kernel.id in kernels else kernel
        for kernel in trace.kernels
    ]
    return dataclasses.replace(trace, kernels=tuple(named))


def copied(records, tensor):
    """When a tensor leaves and comes back, in the first iteration."""
    return [at for moved, _, _, *ends in moves(records) if moved == tensor for at in ends][:4]


def test_flashneuron_copies_half_as_much_in_half_precision():
    records = simulate(
        network(), machine(21), FlashNeuron(compression="half"), record=("kernels", "migrations")
    )
    # x0 (1000 numbers) leaves as 2 pages: 2000 + 2 * 4000, and comes in 2000 + 2 * 2000.
    assert copied(records, 1) == near([40_000, 50_000, 80_000, 86_000])
    assert records.iterations[1].traffic["gpu_to_ssd_bytes"] == 2 * PAGE
    # On the GPU it takes its 4 pages, beside the weight.
    assert [kernel.gpu_pages for kernel in records.kernels[:6]] == [5, 9, 9, 9, 5, 1]


@pytest.mark.parametrize(("density", "out", "back"), [(0.5, 46_000, 84_000), (0.501, 50_000, 86_000)])
def test_flashneuron_copies_what_is_not_zero_and_keeps_its_index(density, out, back):
    trace, policy = rectified(network(), 0), FlashNeuron(compression="csr", density=density)
    records = simulate(trace, machine(21), policy, record=("kernels", "migrations"))
    # Half of 1000 numbers of 2 bytes are a page. The index stays: 128 bytes of bits, 64 counts of 4 bytes.
    assert index_bytes(1000) == 128 + 256
    assert copied(records, 1) == near([40_000, out, 80_000, back])
    assert [kernel.gpu_pages for kernel in records.kernels[:6]] == [5, 9, 10, 10, 5, 1]


def test_flashneuron_offloads_what_is_copied_in_time():
    # x0 alone has to go, but its 2000 bytes would leave from 20,000 to 100,000, and the forward pass ends at
    # 95,000. x1 is the result of a ReLU: a fifth of 2000 bytes leave from 50,000 to 66,000.
    tensors = {"w*": 1} | {f"x{i}": 4 for i in range(4)} | {"g": 1}
    kernels = [(10_000, "w", "x0"), (10_000, "w x0", "x1"), (30_000, "w x1", "x2"), (45_000, "w x2", "x3")]
    kernels += [(20_000, f"w x{i}", "g") for i in reversed(range(4))]
    trace = rectified(with_backward_from(trace_of(tensors, kernels, "net"), 4), 1)
    system = machine(26, write="0.025 GB/s")
    policy = FlashNeuron(compression="csr", density=0.2)
    (plan,) = policy.plan(Workload((Job(trace),)), system, BehaviourSpec())
    assert plan.moves == (planned(3, 2, FLASH),)
    (plan,) = FlashNeuron(compression="half").plan(Workload((Job(trace),)), system, BehaviourSpec())
    assert plan.moves == (planned(2, 1, FLASH),)


def test_flashneuron_refuses_densities_that_do_not_fit_the_network():
    with pytest.raises(
        PolicyError, match="found 2 densities; allowed: one for all, or one for each of the 1"
    ):
        simulate(rectified(network(), 0), machine(21), FlashNeuron(compression="csr", density=[0.5, 0.5]))


class Grows(Copies):
    name = "grows"

    def compressed(self, job, plan):
        return {0: Compressed(4 * PAGE, PAGE)}


def test_a_tensor_that_grows_when_it_is_compressed_is_refused():
    with pytest.raises(PolicyError, match="compresses tensor 0 to 4000 bytes and an index of 1000"):
        simulate(chain(), machine(8), Grows())


def test_flashneuron_refuses_what_can_not_get_under_the_line():
    with pytest.raises(UnsupportedError) as error:
        simulate(network(), machine(12), FlashNeuron())
    assert str(error.value) == (
        "policy 'flashneuron': 'net' keeps 8 kB for its backward pass even if all that can be is offloaded; "
        "allowed: less than 2 kB (GPU memory less weights and largest working set)"
    )


def test_flashneuron_leaves_out_what_nobody_reads_in_the_published_way_only():
    job = Job(trace_of({"w*": 1, "a": 1, "vain": 1}, [(1000, "w", "a vain"), (1000, "a", "")]))
    kept, published = (FlashNeuron().places(job, None, behaviour) for behaviour in (BehaviourSpec(), GPG))
    assert kept == [Place.LEFT] * 3
    assert published == [Place.LEFT, Place.LEFT, Place.NOWHERE]


def test_flashneuron_shares_one_buffer_among_workspaces():
    trace = network()
    scratch = dataclasses.replace(trace.tensors[0], id=5, name="s", size_bytes=3 * PAGE, persistent=False)
    scratch = dataclasses.replace(scratch, kind=TensorKind.WORKSPACE)
    first = dataclasses.replace(trace.kernels[0], outputs=(5, *trace.kernels[0].outputs))
    trace = dataclasses.replace(trace, tensors=(*trace.tensors, scratch), kernels=(first, *trace.kernels[1:]))
    records = simulate(trace, machine(100), FlashNeuron())
    # Buffer and weight are there all the time, x0 joins them.
    assert records.kernels[0].gpu_pages == 1 + 3 + 4


@pytest.mark.parametrize("behaviour", [BehaviourSpec(), GPG])
@pytest.mark.parametrize("policy", [G10Gds, G10Host])
def test_g10_over_copies_is_ideal_where_everything_fits(policy, behaviour):
    records = simulate(network(), machine(100), policy(), behaviour)
    assert set(iteration_times(records)) == {120_000}


def test_plans_of_copies_move_only_what_leaves():
    """Tensors are allocated at birth and freed at death without the plan."""
    kernels = [(100_000, "", "a"), *[(100_000, "", "")] * 6, (100_000, "", "b"), (100_000, "b", "")]
    trace = trace_of({"a": 4, "b": 4}, [*kernels, *[(100_000, "", "")] * 6, (100_000, "a", "")])
    plan = G10Gds().plan_job(Job(trace), machine(6), BehaviourSpec())
    assert [entry.move for entry in plan.moves] == [Evict(0, "ssd"), Fetch(0)]


def test_g10_gds_uses_no_host_memory_and_g10_host_does():
    trace = network(12)
    system = machine(24, read="0.2 GB/s", write="0.2 GB/s", flash_latency="0 us", fault="0 us")
    ssd_only = simulate(trace, system, G10Gds()).iterations[-1]
    with_host = simulate(trace, system, G10Host()).iterations[-1]
    assert ssd_only.traffic["gpu_to_ssd_bytes"] > 0
    assert (ssd_only.traffic["gpu_to_host_bytes"], ssd_only.traffic["host_to_gpu_bytes"]) == (0, 0)
    assert with_host.traffic["gpu_to_host_bytes"] > 0


@pytest.mark.parametrize(
    ("name", "key"),
    [("g10", "plan_file"), ("ideal", "plan_file"), ("g10_gds", "plan_file"), ("deepum", "order_file")],
)
def test_a_plan_of_the_published_simulator_is_kept_by_name(name, key, tmp_path):
    path = tmp_path / "guide.config"
    path.write_text("")
    assert find(name).with_reference_plan(path).parameters()[key] == str(path)


@pytest.mark.parametrize("policy", [G10Gds, G10Host])
def test_a_given_plan_is_followed(policy, tmp_path):
    trace, path = chain(), tmp_path / "chain.g10p"
    plan = MigrationPlan((planned(1, 0, FLASH), planned(2, 0, GPU)), "by hand")
    save_plan(plan, path, trace)
    followed = create({"name": policy.name, "plan_file": str(path)})
    records = simulate(trace, machine(8), followed, record=("kernels", "migrations"))
    causes = {record.cause for record in records.migrations}
    assert causes == {MigrationCause.PLANNED_EVICTION, MigrationCause.PREFETCH}
    assert policy.with_reference_plan(path).parameters()["plan_file"] == str(path)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"plan_file": 3}, "plan_file: found 3; allowed: the path of a plan file"),
        ({"method": "best"}, "unknown parameter 'method'; allowed: plan_file"),
    ],
)
def test_parameters_are_checked(parameters, message):
    with pytest.raises(ConfigError) as error:
        create({"name": "g10_gds", **parameters})
    assert str(error.value) == f"policy 'g10_gds': {message}"


def test_absent_weights_are_fetched_but_the_published_way_runs_without_them():
    trace = trace_of({"w*": 2, "a": 2}, [(10_000, "w", "a"), (50_000, "", ""), (10_000, "w a", "")])
    policy = Copies(moves=[(1, 0, FLASH)])
    assert stalls(simulate(trace, machine(8), policy))[2] == near({StallReason.FAULT_FLASH: 6000})
    assert kernel_times(simulate(trace, machine(8), policy, GPG)) == [10_000, 50_000, 10_000]


def test_runs_are_the_same_again_with_a_used_policy():
    policy = G10Host()
    system = machine(24, read="0.2 GB/s", write="0.2 GB/s")
    first = simulate(network(12), system, policy)
    assert simulate(network(12), system, policy) == first
    assert simulate(network(12), system, G10Host()) == first
