"""How often a DMA batch may be repeated at once, worked out by hand."""

import pytest
from memories import FLASH, GPU, HOST, NONE, flash_pool, host_pool, memory_of

from g10sim.hardware.runs import Run
from g10sim.hardware.transfers.jumps import BatchMove, repeats_in_room


def move(memory, source, count, target, victim=None):
    return BatchMove(
        memory.queues.prefetch[HOST], source, Run(0, 1000), victim, count, target, demanded=False
    )


@pytest.mark.parametrize(
    ("moves", "repeats"),
    [
        ([(GPU, 3, FLASH)], 100 // 3),  # the SSD fills
        ([(GPU, 3, HOST)], (50 - 10 - 1) // 3),  # host memory, with a batch to spare
        ([(HOST, 3, NONE)], (40 - 1) // 3),  # the GPU, to the last page but one
        ([(GPU, 3, FLASH), (FLASH, 2, NONE)], 100),  # one page more on the SSD each time
        ([(GPU, 3, FLASH), (FLASH, 1, NONE)], 50),
    ],
)
def test_a_batch_is_repeated_until_a_memory_is_nearly_full(moves, repeats):
    memory = memory_of([1000], 40, [host_pool(50), flash_pool(100)])
    assert repeats_in_room(memory, [move(memory, *one) for one in moves], batch_pages=10) == repeats
