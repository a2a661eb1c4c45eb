"""Memory changes through its door alone: all that changes it is refused while the door is closed."""

import inspect

import pytest
from memories import FLASH, GPU, HOST, NONE, flash_pool, host_pool, memory_of

from g10sim.config.host import CompressionSpec, HostSpec
from g10sim.errors import InvariantError
from g10sim.hardware.gpu_memory.allocators.space import ContiguousSpace
from g10sim.hardware.gpu_memory.contiguous import Contiguous
from g10sim.hardware.gpu_memory.layout import Blocks
from g10sim.hardware.gpu_memory.placement import first_fit_left
from g10sim.hardware.host_memory.host_buffers import HostBuffers, HostMemory
from g10sim.hardware.memory import Departure, Mapped, Residency
from g10sim.hardware.pools import Door, Frames
from g10sim.hardware.runs import Run

PAGE = 1000
SIZES = (5, 3, 8, 2, 4, 6)
ABSENT, LATE = 4, 5


def placed(memory):
    """Tensors 0 and 3 on the GPU, 1 in host memory, 2 on flash, the others nowhere."""
    for tensor, place in ((0, GPU), (1, HOST), (2, FLASH), (3, GPU)):
        memory.place(tensor, place)
    return memory


def paged(door):
    return placed(memory_of(SIZES, 20, [host_pool(100, PAGE), flash_pool(100, PAGE)], PAGE, door))


def mapped(door):
    pools = [host_pool(100, PAGE), flash_pool(100, PAGE)]
    return placed(Mapped(SIZES, Frames(20), PAGE, pools, door))


def host_memory():
    compression = CompressionSpec(workers=1, compression_rate="1 GB/s", decompression_rate="1 GB/s")
    return HostMemory(HostSpec(memory="100 kB", compression=compression), 10**9)


def contiguous(door, *, recalls=True, room=20, expanded=None, host=None):
    blocks = Blocks(
        sizes=SIZES,
        allocator=ContiguousSpace(room),
        rules=[first_fit_left] * len(SIZES),
        copy_rate=lambda pages, place, leaves: 10**9,
        recalls=recalls,
        buffers=HostBuffers(host or host_memory(), PAGE, keeps=False),
        staged=HOST,
        expanded=expanded or {},
        scratch_pages=2,
    )
    pools = [host_pool(100, PAGE), flash_pool(100, PAGE)]
    return placed(Contiguous(PAGE, pools, door, blocks))


def unrecalled(door):
    return contiguous(door, recalls=False)


def narrow(door):
    """Room for what is there, and no more."""
    return contiguous(door, room=7)


def move(memory, queue, source, target):
    """Let all of the first run of a queue arrive, or leave."""
    memory.commit(queue, queue[0], queue[0].count, source, target)


def leave(memory, tensor=0, **options):
    """Let a tensor go to host memory, up to the last page."""
    memory.request_eviction(tensor, HOST, Departure(**options))
    move(memory, memory.queues.evict[HOST], GPU, HOST)


def nothing(memory):
    """No preparation."""


def fetch_and_evict(memory):
    memory.request_prefetch(2)
    memory.request_eviction(0, FLASH)


def wait_for_all(memory):
    memory.await_transfers(None, evictions=True, prefetches=True)


def has_waited(memory):
    fetch_and_evict(memory)
    wait_for_all(memory)
    memory.cancel(0)
    memory.cancel(2)


def wants(*tensors, frees=()):
    """Tensors find no room; others are discarded, and what waits has not been told of their room."""

    def prepare(memory):
        for tensor in tensors:
            memory.request_prefetch(tensor)
        for tensor in frees:
            memory.discard(tensor)

    return prepare


COMMON = {
    "place": (nothing, lambda memory: memory.place(ABSENT, HOST)),
    "place on the GPU": (nothing, lambda memory: memory.place(ABSENT, GPU)),
    "take": (nothing, lambda memory: memory.take(1)),
    "arrive": (nothing, lambda memory: memory.arrive(1, 1, HOST)),
    "commit of an arrival": (
        fetch_and_evict,
        lambda memory: move(memory, memory.queues.prefetch[FLASH], FLASH, NONE),
    ),
    "commit of an eviction": (
        fetch_and_evict,
        lambda memory: move(memory, memory.queues.evict[FLASH], GPU, FLASH),
    ),
    "touch": (nothing, lambda memory: memory.touch(0)),
    "written": (nothing, lambda memory: memory.written([0])),
    "demand": (nothing, lambda memory: memory.demand(1)),
    "request_prefetch": (nothing, lambda memory: memory.request_prefetch(1)),
    "request_eviction": (nothing, lambda memory: memory.request_eviction(0, FLASH)),
    "discard on the GPU": (nothing, lambda memory: memory.discard(0)),
    "discard in a tier": (nothing, lambda memory: memory.discard(1)),
    "cancel": (fetch_and_evict, lambda memory: memory.cancel(2)),
    "cancel_eviction": (fetch_and_evict, lambda memory: memory.cancel_eviction(0)),
    "use_in_place": (nothing, lambda memory: memory.use_in_place(1, HOST)),
    "bring_in": (lambda memory: memory.use_in_place(1, HOST), lambda memory: memory.bring_in()),
    "hold": (nothing, lambda memory: memory.hold(frozenset({0}))),
    "protect": (nothing, lambda memory: memory.protect(frozenset({0}))),
    "await_transfers": (fetch_and_evict, wait_for_all),
    "send": (nothing, lambda memory: memory.send(Run(0, 5), FLASH)),
    "pass_on": (nothing, lambda memory: memory.pass_on(1)),
    "allocate_in": (nothing, lambda memory: memory.allocate_in(HOST, ABSENT)),
    "carry_over": (nothing, lambda memory: memory.carry_over(2, 1, FLASH, HOST)),
    "store_in": (nothing, lambda memory: memory.store_in(FLASH, 1, 1, HOST)),
    "begin_store": (nothing, lambda memory: memory.begin_store(1)),
    "end_store": (lambda memory: memory.begin_store(1), lambda memory: memory.end_store(1)),
    "return_clean": (nothing, lambda memory: memory.return_clean(0, 1, FLASH)),
    "forget_awaited": (has_waited, lambda memory: memory.forget_awaited()),
}
CASES = [
    (f"{kind.__name__}: {name}", kind, *case) for kind in (paged, contiguous) for name, case in COMMON.items()
] + [
    (f"{kind.__name__}: {name}", kind, prepare, change)
    for name, kind, prepare, change in (
        (
            "request_eviction of a tensor that may be read",
            contiguous,
            nothing,
            lambda memory: memory.request_eviction(0, HOST, Departure(until=1)),
        ),
        (
            "request_eviction of a clean tensor",
            contiguous,
            nothing,
            lambda memory: memory.request_eviction(0, HOST, Departure(is_clean=True)),
        ),
        ("reclaim", mapped, lambda memory: memory.discard(0), lambda memory: memory.reclaim([0])),
        ("reserve_scratch", contiguous, nothing, lambda memory: memory.reserve_scratch(first_fit_left)),
        (
            "give_up_scratch",
            contiguous,
            lambda memory: memory.reserve_scratch(first_fit_left),
            lambda memory: memory.give_up_scratch(),
        ),
        (
            "end_kernel",
            contiguous,
            lambda memory: leave(memory, until=1),
            lambda memory: memory.end_kernel(1),
        ),
        ("withdraw_requests", narrow, wants(LATE), lambda memory: memory.withdraw_requests(())),
        (
            "drop_compression",
            contiguous,
            lambda memory: memory.request_eviction(0, HOST, Departure(density=0.1)),
            lambda memory: memory.drop_compression(),
        ),
        ("discard of what leaves", unrecalled, fetch_and_evict, lambda memory: memory.discard(0)),
        ("cancel of what leaves", unrecalled, fetch_and_evict, lambda memory: memory.cancel(0)),
        ("cancel of what waits", narrow, wants(LATE), lambda memory: memory.cancel(LATE)),
        ("settle takes space back", contiguous, leave, lambda memory: memory.settle()),
        ("settle allocates", narrow, wants(ABSENT, frees=[0]), lambda memory: memory.settle()),
        ("settle begins a fetch", narrow, wants(1, frees=[0]), lambda memory: memory.settle()),
    )
]
READERS = {
    *("lies", "state", "arriving", "evicting", "used_in_place", "kept_in", "clean_pages"),
    *("describe", "stay_mapped", "order", "check", "figures", "is_usable", "merging", "joins_last"),
    *("note_peak", "restart_peaks", "is_asked_for"),
}
"""Public methods of a memory that look at it, keep count, or say how later changes are made."""
PARTS = {"arrived", "reorder", "settle"}
"""Public methods that do something in some kinds of memory only, or as part of a change."""


@pytest.mark.parametrize(
    ("kind", "prepare", "change"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_nothing_changes_memory_behind_a_closed_door(kind, prepare, change):
    door = Door()
    memory = kind(door)
    prepare(memory)
    door.is_open = False
    with pytest.raises(InvariantError, match=r"^memory was changed outside Fabric\.alter\(\)$"):
        change(memory)


@pytest.mark.parametrize(
    ("kind", "prepare", "change"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_an_open_door_counts_every_change(kind, prepare, change):
    door = Door()
    memory = kind(door)
    prepare(memory)
    before = door.changes
    change(memory)
    assert door.changes > before


@pytest.mark.parametrize("kind", [Residency, Mapped, Contiguous])
def test_every_public_method_is_known_to_change_memory_or_not_to(kind):
    methods = {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}
    changing = {name.split(": ")[1].split()[0] for name, *_ in CASES}
    assert methods - READERS - PARTS <= changing


def test_without_a_door_of_others_memory_is_open():
    memory = memory_of(SIZES, 20, [host_pool(100)], PAGE)
    memory.place(0, GPU)
    assert memory.idle[0] == 5
