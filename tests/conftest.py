"""The published simulator's data, where the tests are told about it; and no test is timed."""

import gc
import os
from pathlib import Path

import pytest
from hypothesis import settings

from g10sim.sim import IS_COMPILED

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Threads of PyTorch that have nothing to do wait by computing, which other tests on the same cores pay for.
os.environ.setdefault("OMP_NUM_THREADS", "1")


SLOW = {"models", "recorded", "site", "torch"}
"""Fixtures that capture or record models, or build the site."""


# Simulations make no cycles of references worth a search every few objects.
gc.set_threshold(100_000, 20, 20)


def pytest_collection_modifyitems(items):
    """Mark the tests that use slow fixtures, and those that need the published data."""
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        if used & SLOW:
            item.add_marker("slow")
        if "reference" in used:
            item.add_marker("reference")
        if IS_COMPILED and item.get_closest_marker("interpreted"):
            item.add_marker(pytest.mark.skip("compiled code does not notice replaced parts"))


@pytest.fixture(scope="session")
def reference():
    """Directory of data that others published."""
    directory = os.environ.get("G10SIM_REFERENCE")
    if not directory:
        pytest.skip("needs the published data: set G10SIM_REFERENCE to the directory that holds gpg/traces")
    return Path(directory)


@pytest.fixture(scope="session")
def published(reference):
    """Directory of the published simulator's data."""
    return reference / "gpg"
