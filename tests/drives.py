"""Small drives to work out by hand: a cycle is a nanosecond, a superblock 64 pages of 1000 bytes."""

from machines import machine

from g10sim.config.flash_ssd import FlashSsdSpec

PAGE = 1000


def drive(**changes):
    """Two channels of two dies with a plane: 4 dies program 4000 bytes in 8 us: 500 MB/s; reads 2 GB/s."""
    description = {
        "model": "flash",
        "interface": "1 GB/s",
        "channels": 2,
        "dies": 2,
        "planes": 1,
        "blocks": 100,
        "pages": 16,
        "page_size": f"{PAGE} B",
        "bus": "1 GB/s",
        "read": "1 us",
        "program": "7 us",
        "erase": "16 us",
        "read_command": "0 ns",
        "program_command": "0 ns",
        "controller_latency": "10 us",
        "write_buffer": "0 B",
        "queue_depth": 64,
        "request_size": "64 kB",
        "overprovisioning": 0.25,
        "collection": {"start": 0.1, "urgent": 0.05},
        "write_floor": 0,
        "rating": {"cycles": 1000, "written": "1 GB", "years": 5},
        **changes,
    }
    return FlashSsdSpec.model_validate(description)


def with_drive(spec, **changes):
    """The machine of the other tests with this drive."""
    return machine(**changes).model_copy(update={"ssd": spec})
