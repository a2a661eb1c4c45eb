"""The site is built without a warning, leads to every page, and takes nothing from elsewhere."""

import os
import re
import subprocess
import sys
from fcntl import LOCK_EX, flock
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
NOTEBOOKS = sorted(path.name for path in DOCS.glob("*.ipynb"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, which the first of all workers that needs it builds."""
    if any(find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings", "mkdocs_jupyter")):
        pytest.skip("needs MkDocs and its plug-ins: pip install 'g10sim[docs]'")
    shared = tmp_path_factory.getbasetemp()
    target = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "site"
    made = tmp_path_factory.mktemp("made") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(made)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "RUN_NOTEBOOKS": "false"}
    with target.with_suffix(".lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not target.exists():
            built = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
            )
            assert built.returncode == 0, built.stderr
            made.rename(target)
    return target


def html(site, page):
    name = page.removesuffix(".md")
    return (site / ("" if name == "index" else name) / "index.html").read_text(encoding="utf-8")


def navigated(entries):
    for entry in entries:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else navigated(value)


def test_every_page_is_in_the_navigation_once():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    settings = yaml.safe_load(text[text.index("\nnav:") :])
    assert sorted(navigated(settings["nav"])) == sorted([*PAGES, *NOTEBOOKS])


@pytest.mark.parametrize("page", [name for name in (*PAGES, *NOTEBOOKS) if name != "index.md"])
def test_every_page_can_be_found_from_the_readme_and_the_first_page(page):
    assert f"](docs/{page})" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"]({page})" in (DOCS / "index.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_tables_pictures_and_code_become_what_they_are(site, page):
    source = (DOCS / page).read_text(encoding="utf-8")
    built = html(site, page)
    assert built.count("<table>") == len(re.findall(r"^\|(?: ?:?-+:? ?\|)+$", source, re.MULTILINE))
    assert built.count("<img ") - built.count('<img alt="logo"') >= source.count("![")
    assert "```" not in built
    assert "test: " not in re.sub(r"<!--.*?-->", "", built, flags=re.DOTALL)


@pytest.mark.slow
def test_the_python_interface_is_described_from_its_docstrings(site):
    built = html(site, "api.md")
    for name in (
        "simulate",
        "Policy",
        "on_kernel_start",
        "next_use",
        "Evict",
        "MigrationPlan",
        "ConfigError",
    ):
        assert re.search(rf'id="g10sim\.[\w.]*\b{name}"', built), name


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.rglob("*.html"):
        found = re.findall(r"""(?:src|<link[^>]*href)=["']?(https?://[^"' >]+)""", page.read_text("utf-8"))
        assert found == [], page.name
