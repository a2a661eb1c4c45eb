"""Tensors as blocks of pages: what space they take, and when they give it back."""

import pytest
from memories import HOST
from test_door import contiguous, host_memory, leave

from g10sim.hardware.host_memory.host_buffers import Expanded
from g10sim.hardware.memory import Departure
from g10sim.hardware.pools import Door


def test_an_index_stays_while_its_tensor_is_away_and_goes_with_it():
    memory = contiguous(Door(), expanded={0: Expanded(6, 2)})
    blocks = memory.blocks.allocator
    assert blocks.used_pages == 6 + 2
    leave(memory)
    memory.settle()
    assert blocks.used_pages == 2 + 2
    memory.discard(0)
    assert blocks.used_pages == 2


@pytest.mark.parametrize("until", [None, 3])
def test_a_tensor_that_is_called_back_is_held_for_no_kernel(until):
    memory = contiguous(Door())
    memory.request_eviction(0, HOST, Departure(until=until))
    memory.cancel(0)
    assert not memory.queues.evict[HOST]
    leave(memory)
    memory.settle()
    assert memory.used_pages == 2


def test_a_tensor_that_died_as_it_left_and_is_called_back_keeps_what_is_written_next():
    memory = contiguous(Door())
    memory.request_eviction(0, HOST, Departure(until=3))
    memory.discard(0)
    memory.end_kernel(3)
    memory.cancel_eviction(0)
    leave(memory)
    memory.settle()
    assert memory.pages[HOST][0] == 5
    assert not memory.absent[0]


def test_the_space_of_what_kernels_still_read_is_given_back_when_they_have_ended():
    memory = contiguous(Door())
    leave(memory, until=3)
    for kernel, used in ((2, 7), (3, 2)):
        memory.end_kernel(kernel)
        assert memory.used_pages == used


def test_the_mean_of_pages_is_exact_where_their_cycles_are_too_many_for_a_float():
    host = host_memory()
    memory = contiguous(Door(), host=host)
    host.advance(1_971_774_816_594_291)
    leave(memory)
    memory.settle()
    host.advance(2_927_726_938_422_255)
    assert (
        memory.blocks.mean_pages()
        == (2 * 2_927_726_938_422_255 + 5 * 1_971_774_816_594_291) / 2_927_726_938_422_255
    )
