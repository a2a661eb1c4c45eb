"""What resources cost, by a list of prices."""

import pytest

from g10sim.sizing.resources import PriceList, find

GIB, GB = 2**30, 10**9


def prices(**bought):
    given = {
        name.replace("_", "-"): {"price": price, "for": amount} for name, (price, amount) in bought.items()
    }
    return PriceList(
        currency="EUR",
        prices={name: price | {"source": "a shop", "date": "2026"} for name, price in given.items()},
    )


@pytest.mark.parametrize(
    ("resource", "amount", "cost"),
    [("host-memory", 32 * GIB, 225), ("host-memory", 0, 0), ("link", 20 * GB, 160), ("ssd", 20 * GB, None)],
)
def test_the_price_is_for_the_amount_that_it_buys(resource, amount, cost):
    listed = prices(host_memory=(450, "64 GiB"), link=(120, "15 GB/s"))
    assert listed.cost(find(resource), amount) == cost
