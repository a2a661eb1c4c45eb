"""Random traces, small enough to look at, for property tests."""

from hypothesis import strategies as st
from machines import trace_of


@st.composite
def traces(draw, make=trace_of, *, persistent=True, largest=6, tensors=5, kernels=8, cycles=(1, 20_000)):
    """At most so many tensors of up to ``largest`` pages, and kernels that use up to six of them."""
    sizes = {
        f"t{i}" + "*" * (persistent and draw(st.booleans())): draw(st.integers(1, largest))
        for i in range(draw(st.integers(1, tensors)))
    }
    names = [name.rstrip("*") for name in sizes]
    some = st.lists(st.sampled_from(names), max_size=3, unique=True).map(" ".join)
    kernel = st.tuples(st.integers(*cycles), some, some)
    return make(sizes, draw(st.lists(kernel, min_size=1, max_size=kernels)))
