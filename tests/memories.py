"""Places, pools and memories to put together by hand."""

from types import SimpleNamespace

from g10sim.config.tiers import Tier
from g10sim.hardware.memory import Residency
from g10sim.hardware.pools import Door, Frames, Pool
from g10sim.records import Location

NONE, GPU = Location.NONE, Location.GPU
HOST, FLASH = Location(2, "HOST"), Location(3, "FLASH")


NO_VICTIMS = SimpleNamespace(asks_policy=False)
"""The rule of a memory that never fills."""


def host_pool(pages, page=4096):
    """Host memory of so many pages."""
    return Pool(Tier(HOST, "host", "memory", pages * page), page)


def flash_pool(pages, page=4096):
    """An SSD of so many pages."""
    return Pool(Tier(FLASH, "ssd", "ssd", pages * page), page)


def memory_of(sizes, gpu, pools, page=4096, door=None):
    """Memory of a job that has a GPU of so many pages to itself."""
    return Residency(sizes, Frames(gpu), page, pools, door or Door())


def moved(memory):
    """Pages that came from flash, went there, came from host memory, went there."""
    traffic = memory.traffic
    return (
        traffic.moved_in[FLASH],
        traffic.moved_out[FLASH],
        traffic.moved_in[HOST],
        traffic.moved_out[HOST],
    )
