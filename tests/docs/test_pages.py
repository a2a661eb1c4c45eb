"""Every command and every Python block of the documentation runs, in an imitation of a clone."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from doc_blocks import blocks, installing
from warm import warm_commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NEEDS = ("reference", "torch")
LONG = {
    *("benchmarks/README.md", "docs/capture.md", "docs/claims.md", "docs/distributed.md", "docs/flash.md"),
    *("docs/looking-at-a-run.md", "docs/multi-gpu.md", "docs/pools.md", "docs/sizing.md", "docs/tensile.md"),
    *("docs/writing-policies.md", "docs/vdnn.md", "docs/describing-a-machine.md", "docs/model.md"),
    *("docs/designing-a-sweep.md", "docs/bound.md", "docs/reading-stalls.md", "docs/adding-a-figure.md"),
    *("docs/executing-plans.md", "docs/measured.md", "docs/figures.md", "docs/policies.md"),
    "docs/policy-interface.md",
}
"""Pages that take long to run: with -m nightly."""


def name(page):
    return str(page.relative_to(ROOT))


def pages(*, needs):
    """Pages with blocks that need exactly this (None: nothing)."""
    found = [page for page in PAGES if any(need(block) == needs for block in runnable(page))]
    return [pytest.param(page, marks=pytest.mark.nightly if name(page) in LONG else ()) for page in found]


def runnable(page):
    return [block for block in blocks(page) if not block.has("install")]


def need(block):
    return next((what for what in NEEDS if block.has(what)), None)


@pytest.fixture
def clone(tmp_path):
    """A directory like the top of a clone: what commands may write to is copied, the rest linked."""
    for part in ("configs", "traces", "experiments", "tests"):
        (tmp_path / part).symlink_to(ROOT / part)
    for part in ("benchmarks", "docs", "plots"):
        shutil.copytree(ROOT / part, tmp_path / part)
    (tmp_path / "g10sim").mkdir()
    for part in (ROOT / "g10sim").iterdir():
        target = tmp_path / "plots" if part.name == "plots" else part
        (tmp_path / "g10sim" / part.name).symlink_to(target)
    return tmp_path


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A directory of commands that start at once."""
    with warm_commands(tmp_path_factory.mktemp("warm")) as directory:
        yield directory


def commands_for(page, warm):
    """Directories of the commands of a page: those that change the program need it read anew."""
    changes = any(file.startswith("plots/") for block in blocks(page) for file in block.values("file"))
    return [] if changes else [str(warm)]


def run(command, clone, where, first):
    environment = {**os.environ, "PYTHONPATH": str(clone)}
    path = [*first, str(Path(sys.executable).parent), environment["PATH"]]
    environment["PATH"] = os.pathsep.join(path)
    ended = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{where}: exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def shell(text):
    return ["bash", "-euo", "pipefail", "-c", text]


def run_block(block, clone, page, warm):
    where = f"{name(page)}, line {block.line}"
    first = commands_for(page, warm)
    for command in block.values("run"):
        run(shell(command), clone, where, first)
    for file in block.values("file"):
        (clone / file).write_text(block.code, encoding="utf-8")
    if block.language == "yaml":
        assert block.values("file"), f"{where}: YAML that no command uses"
    elif block.language == "sh":
        run(shell(block.code), clone, where, first)
    else:
        start = [str(warm / "run-code")] if first else [sys.executable, "-c"]
        run([*start, block.code], clone, where, first)


@pytest.mark.slow
@pytest.mark.parametrize("page", pages(needs=None), ids=name)
def test_blocks_run(page, clone, warm):
    for block in runnable(page):
        if need(block) is None:
            run_block(block, clone, page, warm)


@pytest.mark.slow
@pytest.mark.parametrize("page", pages(needs="reference"), ids=name)
def test_blocks_with_the_published_data_run(page, clone, published, warm):
    for block in runnable(page):
        if need(block) == "reference":
            run_block(block, clone, page, warm)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch: pip install 'g10sim[capture]'")
@pytest.mark.parametrize("page", pages(needs="torch"), ids=name)
def test_blocks_with_pytorch_run(page, clone, warm):
    for block in runnable(page):
        if need(block) == "torch":
            run_block(block, clone, page, warm)


def test_the_checks_run_the_commands_of_the_readme():
    installs, tests = installing(ROOT / "README.md")
    (wheel,) = installing(ROOT / "docs" / "design.md")
    assert installs.startswith("pip install . && ")
    assert tests == "pip install -e '.[dev]' && pytest"
    assert wheel == "HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip wheel . --no-deps -w dist"
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "mapfile -t commands < <(python3 tests/docs/doc_blocks.py README.md)" in script
    assert script.count('bash -euc "${commands[') == len(installing(ROOT / "README.md"))
    assert 'bash -euc "$wheel"' in script
    assert installing(ROOT / "CONTRIBUTING.md") == [tests]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).is_file(), f"{name(page)}: {target}"
