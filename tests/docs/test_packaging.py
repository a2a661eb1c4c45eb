"""Files that describe the package or install it elsewhere agree with ``pyproject.toml`` and the README."""

import json
import re
import tomllib
from pathlib import Path

import yaml
from doc_blocks import blocks
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
METADATA = PROJECT["project"]
PYTHONS = [name for name in PROJECT["tool"]["tox"]["env_list"] if name.startswith("3.")]


def read_yaml(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_citation_names_the_same_version_authors_words_and_paper():
    cited = read_yaml("CITATION.cff")
    assert cited["version"] == METADATA["version"]
    assert cited["authors"] == METADATA["authors"]
    assert cited["keywords"] == METADATA["keywords"]
    assert [paper["url"] for paper in cited["references"]] == list(METADATA["urls"].values())


def test_the_pythons_that_are_tested_are_those_that_are_named():
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(METADATA["classifiers"]))
    assert named == PYTHONS
    assert all(python in SpecifierSet(METADATA["requires-python"]) for python in PYTHONS)


def test_the_types_of_the_package_are_for_others_too():
    assert "Typing :: Typed" in METADATA["classifiers"]
    assert (ROOT / "g10sim" / "py.typed").is_file()


def test_pages_name_the_pytorch_that_pip_takes():
    (wanted,) = Requirement(METADATA["optional-dependencies"]["capture"][0]).specifier
    page = (ROOT / "docs/executing-plans.md").read_text(encoding="utf-8")
    assert f"`pip install 'g10sim[capture]'` takes {wanted.version} or newer" in page


def test_a_container_runs_the_first_command_of_the_readme():
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    steps = [tuple(line.split(" ", 1)) for line in lines if not line.startswith("#")]
    (image,), (install,), (run,) = (
        [text for step, text in steps if step == name] for name in ("FROM", "RUN", "CMD")
    )
    first = next(block.text.strip() for block in blocks(ROOT / "README.md") if block.has("install"))
    assert f"{install} && {' '.join(json.loads(run))}" == first
    assert image == f"python:{PYTHONS[-1]}-slim"


def test_conda_gets_the_versions_that_pip_gets():
    *packages, pip = read_yaml("environment.yml")["dependencies"]
    assert pip == {"pip": ["."]}
    wanted = {one.name: one.specifier for one in map(Requirement, METADATA["dependencies"])}
    wanted |= {"python": SpecifierSet(METADATA["requires-python"]), "pip": SpecifierSet()}
    found = {one.name.removesuffix("-base"): one.specifier for one in map(Requirement, packages)}
    assert found == {name: wanted[name] for name in found}


def test_what_runs_before_a_commit_is_what_the_checks_run():
    (local,) = read_yaml(".pre-commit-config.yaml")["repos"]
    entries = [hook["entry"] for hook in local["hooks"]]
    assert f"`{' && '.join(entries)}` are clean" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    checks = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert [entry for entry in entries if entry not in checks] == []
