"""A machine and traces in ms and MB, for designs that swap: the link carries 12 MB in a ms."""

from machines import machine, trace_of

MS = 1_000_000
PAGE = 100_000


def system(gpu_pages=100_000, **changes):
    """1 GHz, pages of 100 kB, a link of 12 MB a ms and mapping that takes next to nothing."""
    return machine(
        gpu_pages, 100_000, page=PAGE, pcie="12 GB/s", mapping="100000 GB/s", flash_pages=10**6, **changes
    )


def trace(tensors, kernels):
    """A trace from {name: MB} and (ms, inputs, outputs)."""
    pages = {name: size * 10 for name, size in tensors.items()}
    return trace_of(pages, [(time * MS, *rest) for time, *rest in kernels], page=PAGE)
