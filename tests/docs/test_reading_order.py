"""The reading order leads through the source that there is."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reading-order.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Renamed")[0]
PACKAGES = [path.parent.relative_to(ROOT / "g10sim") for path in (ROOT / "g10sim").glob("*/__init__.py")]


@pytest.mark.parametrize("package", [*PACKAGES, Path("plots")], ids=str)
def test_every_folder_is_named(package):
    assert re.search(rf"[`/]{package.as_posix()}\b", TEXT)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(?:[\w/]+/)?(\w+\.py)`", TEXT))))
def test_every_module_named_is_there(name):
    assert [*(ROOT / "g10sim").rglob(name), *(ROOT / "plots").glob(name), *(ROOT / "tests").glob(name)]


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:g10sim|tests|docs)/[\w/.-]+)`", CONTRIBUTING))))
def test_what_contributors_edit_is_there(name):
    assert (ROOT / name).exists()
