"""Builds a machine, runs a workload under a policy, and returns the records."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, count, product

from simpy.core import StopSimulation

from g10sim.analysis.contexts import without_contexts
from g10sim.config.allocator import CachingPoolSpec
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.flash_ssd import FlashSsdSpec
from g10sim.config.run import AUTO, most_iterations
from g10sim.config.system import SystemSpec
from g10sim.config.tiers import Tier
from g10sim.errors import ConfigError, InvariantError, UnsupportedError
from g10sim.hardware.flash.pool import FlashPool
from g10sim.hardware.memory import Mapped, Residency
from g10sim.hardware.pools import Door, Frames, Pool
from g10sim.hardware.transfers.batched import BatchedTransfers
from g10sim.hardware.transfers.fluid import FluidTransfers
from g10sim.hardware.transfers.interface import Observer, Transfers
from g10sim.hardware.transfers.staging import Staging
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.policy import Policy
from g10sim.policies.interface.registry import check_class
from g10sim.records import Location, RunRecords
from g10sim.sim.accounts.recorder import Checker, Recorder
from g10sim.sim.accounts.repetition import Iterations, Patience, are_replicas, with_numbers
from g10sim.sim.addresses import OwnAddresses, PooledAddresses, address_map
from g10sim.sim.beside.peers import GradientExchange, StageTransfers
from g10sim.sim.context import JobContext, Machine
from g10sim.sim.contiguous import contiguous_memory
from g10sim.sim.executor import JobRun
from g10sim.sim.fabric import Clock, Fabric
from g10sim.sim.gpu import Allotment, CopyContention, Gpu
from g10sim.sim.hooks import asked, kind_of, plans_of
from g10sim.sim.moves.reactions import NamedTensors
from g10sim.sim.preparation import check_cpu, check_flash, check_sharing, settled, with_chosen_kernels
from g10sim.trace.format import rare_cycle_collection
from g10sim.trace.model import Trace
from g10sim.trace.workload import Job, Workload
from g10sim.units import format_bytes

# Evictions go by chunks with these. Where the running kernel's pages may leave, only first in, first out lets
# all of them arrive; batches repeat moves as long as the order stays.
_BY_CHUNKS = "arrival", "pinned", "fluid"


@rare_cycle_collection()
def run(
    workload: Workload,
    system: SystemSpec,
    policy: Policy,
    behaviour: BehaviourSpec | None = None,
    *,
    record: Collection[str] = (),
    check: bool = False,
) -> RunRecords:
    """Simulate a workload on a system under a policy, which plans for unvaried kernel times.

    ``record`` names what to keep besides iterations: kernels, migrations, memory, or timeline for all.
    With ``check`` every invariant is tested while time passes. Raises UnsupportedError when the policy
    cannot run the workload, CapacityError when no policy could, PolicyError for an illegal or failing policy.
    """
    check_class(type(policy))
    behaviour = behaviour or BehaviourSpec()
    for number, job in enumerate(workload.jobs):
        if not 0 <= job.gpu < system.gpu.count:
            raise ConfigError.at(f"workload.jobs[{number}].gpu", job.gpu, f"0 to {system.gpu.count - 1}")
    workload, system = with_numbers(workload, behaviour), without_contexts(workload, system)
    if behaviour.tensor_order == "use":
        workload = workload.in_order_of_use()
    check_sharing(workload, policy, behaviour)
    check_cpu(workload, system, policy, behaviour)
    check_flash(workload, system, policy, behaviour)
    setup = _Setup(system, policy, behaviour, (), check=check)
    policy = settled(
        policy,
        workload,
        system,
        lambda design, short, at_most: _simulate(short, replace(setup, policy=design, at_most=at_most)),
    )
    return _simulate(workload, replace(setup, policy=policy, record=record))


@dataclass(frozen=True)
class _Setup:
    """Machine and policy of a simulation, and the records that are kept of it.

    It ends with TooSlowError once the last iterations of all jobs have taken more than ``at_most`` cycles.
    """

    system: SystemSpec
    policy: Policy
    behaviour: BehaviourSpec
    record: Collection[str]
    check: bool
    at_most: Sequence[int] = ()


def _simulate(given: Workload, setup: _Setup) -> RunRecords:
    system, policy, behaviour = setup.system, setup.policy, setup.behaviour
    workload = with_chosen_kernels(given, system, policy)
    if workload is not given:
        check_cpu(workload, system, policy, behaviour)
    planned, jobs = workload.as_planned(), len(workload.jobs)
    plans = asked(policy, "plan", lambda: plans_of(policy.plan(planned, system, behaviour), jobs))
    records = _Simulation(workload, given, plans, setup).run()
    note = asked(policy, "note", lambda: kind_of(policy.note, str, "text"))
    return replace(records, note=note, tiers=system.kinds)


class _Simulation:
    """One run from time 0 until every job has ended."""

    def __init__(
        self, workload: Workload, given: Workload, plans: Collection[MigrationPlan | None], setup: _Setup
    ) -> None:
        """Ideal times are those of the workload as ``given``, whose kernels are as fast as they can be."""
        self._system = system = setup.system
        self._policy, self._behaviour = setup.policy, (behaviour := setup.behaviour)
        self._pools = tuple(self._pool(tier, workload) for tier in system.all_tiers)
        self._door = Door(is_open=False)
        recorder = Recorder(frozenset(setup.record), system.gpu.page_size)
        transfers = self._transfers(behaviour, recorder.moved if recorder.wants_migrations else None)
        streams = behaviour.running_tensors == "evictable"
        checker, jobs = None, workload.jobs
        if setup.check:
            on_cpu, on_cpu_given = (
                sum(len(job.trace.cpu_kernels) for job in one.jobs) for one in (workload, given)
            )
            steps, beats = lambda: transfers.events, on_cpu > on_cpu_given
            checker = Checker(streams_working_set=streams, steps=steps, may_beat_ideal=beats)
        is_one = len(jobs) == 1 and not (jobs[0].trace.cpu_kernels or jobs[0].trace.link_kernels)
        fabric = Fabric(Clock(one_process=is_one), transfers, self._door)
        cpus = [Allotment(fabric.clock, 1) for _ in system.host.sockets or (None,)]
        alike, several = are_replicas(workload), len(jobs) > 1
        parts = fabric, system, behaviour, recorder, checker, workload.sharing, cpus
        self._machine = Machine(*parts, has_replicas=several and alike, is_mixed=not alike)
        self._frames = self._shared_frames(workload)
        self._exchange = self._gradient_exchange(workload)
        self._peers = self._exchange or self._stage_transfers(workload)
        patience = Patience(fabric.clock, len(jobs))
        self._at_last = {
            number: partial(patience.watch, cycles) for number, cycles in enumerate(setup.at_most)
        }
        with fabric.alter():
            self._jobs = list(self._job_runs(workload, given, plans))
        recorder.name_tensors({number: job.given_id_at for number, job in enumerate(self._jobs)})
        for pool, job in product(self._pools, self._jobs):
            if isinstance(pool, FlashPool):
                pool.expect_deaths(job.memory, job.death_of)

    def _gradient_exchange(self, workload: Workload) -> GradientExchange | None:
        """Return what data-parallel replicas exchange gradients by. Raises ConfigError for what cannot be."""
        spec = workload.exchange
        if spec is None:
            return None
        transfers = self._fluid_transfers("workload.replicas: found")
        gpus = [job.gpu for job in workload.jobs]
        if len(set(gpus)) < len(gpus) or len({id(job.trace) for job in workload.jobs}) > 1:
            found = "replicas that are not alike, or share a GPU"
            raise ConfigError.at("workload.replicas", found, "one trace, each replica on a GPU of its own")
        return GradientExchange(workload.jobs[0].trace, gpus, spec, self._machine.fabric, transfers)

    def _stage_transfers(self, workload: Workload) -> StageTransfers | None:
        """Return what stages of a pipeline send to each other by. Raises ConfigError for what cannot be."""
        if not any(job.trace.link_kernels for job in workload.jobs):
            return None
        transfers = self._fluid_transfers("workload.jobs: found stages of a pipeline")
        return StageTransfers(workload.jobs, self._machine.fabric, transfers)

    def _fluid_transfers(self, found: str) -> FluidTransfers:
        """Return the transfers, which have to send messages. Raises ConfigError where they send none."""
        transfers = self._machine.fabric.transfers
        if not isinstance(transfers, FluidTransfers):
            raise ConfigError(f"{found} with compat.transfers 'batched'; allowed: fluid transfers")
        return transfers

    def _job_runs(
        self, workload: Workload, given: Workload, plans: Collection[MigrationPlan | None]
    ) -> Iterator[JobRun]:
        """Yield every job with its memory; those without a number of iterations decide together."""
        jobs, behaviour = workload.jobs, self._behaviour
        if self._staging is not None and behaviour.copy_iterations == "first":
            jobs = tuple(replace(job, iterations=1) for job in jobs)
        until_steady = [number for number, job in enumerate(jobs) if job.iterations == AUTO]
        together = Iterations(most_iterations(AUTO, behaviour), until_steady)
        for number, (job, plan) in enumerate(zip(jobs, plans, strict=True)):
            memory, addresses = self._memory_of(number, job, plan)
            own = Iterations(most_iterations(job.iterations, behaviour), at_last=self._at_last.get(number))
            ideal = given.executed(number).durations_cycles(self._system.gpu.clock)
            yield JobRun(
                JobContext(
                    number=number,
                    job=job,
                    executed=workload.executed(number),
                    ideal_cycles=sum(ideal),
                    iterations=together if job.iterations == AUTO else own,
                    memory=memory,
                    addresses=addresses,
                    policy=self._policy,
                    plan=plan,
                    machine=self._machine,
                    exchange=self._exchange,
                    peers=self._peers,
                )
            )

    def _memory_of(self, number: int, job: Job, plan: MigrationPlan | None) -> tuple[Residency, OwnAddresses]:
        """Return a job's memory, and the addresses of its tensors."""
        policy, trace = self._policy, job.trace
        if self._staging is not None:
            frames = self._frames[job.gpu] if self._frames else None
            parts = self._machine, self._staging, self._pools, self._door, frames
            return contiguous_memory(number, job, plan, policy, *parts), OwnAddresses(trace)
        addresses = self._addresses(trace)
        tensors = NamedTensors(policy, number, job, addresses)
        memory = self._memory(job, addresses, tensors.homes(self._system.all_tiers))
        frozen = frozenset(place for one in trace.frozen for place in addresses.held(one))
        required = policy.requirements
        pins, keeps_copies = required.pins_on_use, required.keeps_copies
        memory.describe(frozen, tensors.pageable(), pins=pins, keeps_copies=keeps_copies)
        for pool in memory.pools.values():
            if pool.tier.name == "host":
                pool.reserve(-(-tensors.host_reserved() // memory.page_bytes))
                if pool.reserved_pages > pool.capacity_pages:
                    reserved = format_bytes(pool.reserved_pages * memory.page_bytes)
                    allowed = f"at most the host memory, {format_bytes(pool.tier.capacity)}"
                    place = f"policy '{policy.name}': host_reserved"
                    raise UnsupportedError.at(place, f"{reserved} of all jobs together", allowed)
        return memory, addresses

    def _addresses(self, trace: Trace) -> OwnAddresses:
        """Return the addresses of a trace's tensors in unified memory."""
        required, gpu = self._policy.requirements, self._system.gpu
        wanted = {self._behaviour.addresses, required.addresses}
        if required.unlimited_memory or "own" in wanted or trace.cpu_kernels or trace.link_kernels:
            return OwnAddresses(trace)
        group = self._system.page_fault.group
        return PooledAddresses(address_map(trace, gpu.page_size, group, CachingPoolSpec()))

    def _transfers(self, behaviour: BehaviourSpec, observer: Observer | None) -> Transfers:
        system, service = self._system, self._policy.requirements.link_service
        if service is not None:
            pcie = system.pcie.model_copy(update={"service": service})
            system = system.model_copy(update={"pcie": pcie})
        copies = self._policy.requirements.placement == "contiguous"
        self._staging = Staging(system, behaviour) if copies else None
        if behaviour.transfers == "batched" and not copies:
            return BatchedTransfers(system, behaviour, observer, self._door)
        return FluidTransfers(system, self._pools, observer, self._staging, self._door)

    def _pool(self, tier: Tier, workload: Workload) -> Pool:
        page, last = self._system.gpu.page_size, self._system.all_tiers[-1].place
        if self._behaviour.transfers == "batched" or self._policy.requirements.placement == "contiguous":
            tier = replace(tier, kernel_access=None)
        unlimited = self._policy.requirements.unlimited_memory and tier.place == last
        if unlimited or (tier.kind == "ssd" and self._behaviour.flash_capacity == "unlimited"):
            return Pool(tier, page, sum(sum(job.trace.page_sizes(page)) for job in workload.jobs))
        if isinstance(tier.drive, FlashSsdSpec):
            return FlashPool(tier, tier.drive, self._system.gpu.clock, page)
        return Pool(tier, page)

    def _memory(self, job: Job, addresses: OwnAddresses, homes: Mapping[int, Location]) -> Residency:
        page = self._system.gpu.page_size
        pages = addresses.trace.page_sizes(page)
        unlimited = self._policy.requirements.unlimited_memory
        capacity = sum(pages) if unlimited else self._system.gpu.memory // page
        frames = self._frames[job.gpu] if self._frames else Frames(capacity)
        behaviour = self._behaviour
        by_chunks = (behaviour.recency, behaviour.running_tensors, behaviour.transfers) == _BY_CHUNKS
        facts = pages, frames, page, self._pools, self._door
        chunks = addresses.chunks if by_chunks else ()
        memory = Mapped(*facts, chunks) if addresses.are_shared else Residency(*facts)
        if unlimited:
            for tensor in range(len(pages)):
                memory.place(tensor, Location.GPU)
            return memory
        tiers = memory.tiers[-1:] if behaviour.initial_tier == "last" else memory.tiers
        for tensor in compress(count(), job.trace.lasting):
            wishes = (homes[tensor], *tiers) if tensor in homes else tiers
            for place in addresses.held(tensor):
                roomy = (tier for tier in wishes if memory.pools[tier].free >= pages[place])
                memory.place(place, next(roomy, memory.tiers[-1]))
        return memory

    def _shared_frames(self, workload: Workload) -> tuple[Frames, ...]:
        """Return the pages of every GPU, where jobs share them."""
        if workload.sharing.compute == "exclusive":
            return ()
        page, count = self._system.gpu.page_size, self._system.gpu.count
        capacities = [self._system.gpu.memory // page] * count
        if self._policy.requirements.unlimited_memory:
            capacities = [0] * count
            for job in workload.jobs:
                capacities[job.gpu] += sum(job.trace.page_sizes(page))
        return tuple(Frames(capacity) for capacity in capacities)

    def _slow_by_copies(self, gpus: Sequence[Gpu]) -> None:
        """Let copies slow down the kernels of GPUs that have jobs, where the system says so."""
        fabric, spec = self._machine.fabric, self._system.gpu.copy_contention
        if spec is None or not isinstance(fabric.transfers, FluidTransfers):
            return
        gpu_of = [job.job.gpu for job in self._jobs]
        fabric.watch(CopyContention(fabric.transfers, gpus, gpu_of, spec.share).update)

    def run(self) -> RunRecords:
        machine = self._machine
        fabric, clock = machine.fabric, machine.fabric.clock
        spec, places = self._system.gpu, [frames.capacity_pages for frames in self._frames]
        gpus = [Gpu(clock, machine.sharing, spec.clock, count) for count in places or [1] * spec.count]
        self._slow_by_copies(gpus)
        if self._exchange is not None:
            clock.process(self._exchange.run())
        done = clock.all_of([clock.process(job.run(gpus[job.job.gpu])) for job in self._jobs])
        done.callbacks.append(StopSimulation.callback)
        clock.run()
        if not done.triggered:
            raise fabric.explain_deadlock() or InvariantError("jobs have not ended, and nothing happens")
        return machine.recorder.records(fabric.transfers.events)
