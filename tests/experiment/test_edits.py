"""No row is stale: whatever a plug-in has read, an edit of it runs its cell again, and nothing else does."""

import gzip
import os
import sqlite3
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import g10sim
from g10sim.experiment import program

pytestmark = pytest.mark.slow

POLICY = """\
import importlib, importlib.util, os, pkgutil, runpy, sqlite3, sys, threading
from pathlib import Path
from g10sim.errors import UnsupportedError
from g10sim.policies.interface.policy import Policy

HERE = Path(__file__).parent
{head}


class Mine(Policy):
    name = "mine"

    def __init__(self, *, given=None):
        self.given = given

    def plan_job(self, job, system, behaviour):
        given = self.given
{body}
        raise UnsupportedError(f"found {{found}}")
"""
BY_LOCATION = """\
spec = importlib.util.spec_from_file_location('elsewhere', HERE / 'edits_value.py')
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
found = module.NUMBER"""
WITH_FALLBACK = """\
try:
    from edits_extra import NUMBER as found
except ImportError:
    found = 'nothing'"""
UPDATED = """\
with open(HERE / 'data.txt', 'r+') as file:
    found = file.read()"""
OPENED_LOW = """\
descriptor = os.open(str(HERE / 'data.txt'), os.O_RDONLY)
found = os.read(descriptor, 100)"""
IF_THERE = "path = HERE / 'later.txt'\nfound = path.read_text() if path.exists() else 'nothing'"
TRIED = """\
try:
    found = open(HERE / 'later.txt').read()
except OSError:
    found = 'nothing'"""
WALKED = "found = [sorted(names) for _, _, names in os.walk(given)]"
ON_A_PATH = "sys.path.insert(0, str(HERE / 'inner'))\nfrom edits_deep import NUMBER as found"
ELSEWHERE = "before = os.getcwd()\nos.chdir(HERE)\nfound = open('data.txt').read()\nos.chdir(before)"
IN_A_THREAD = """\
found = []
thread = threading.Thread(target=lambda: found.append((HERE / 'data.txt').read_text()))
thread.start()
thread.join()"""
CHAIN = "found = (HERE / (HERE / 'index.txt').read_text().strip()).read_text()"
QUERY = "found = sqlite3.connect(HERE / 'data.sqlite').execute('select n from t').fetchall()"
KINDS = {
    "its own module": ("NUMBER = 1", "found = NUMBER", None, "edits_policy.py"),
    "a module": ("from edits_value import NUMBER", "found = NUMBER", None, "edits_value.py"),
    "a module in a function": ("", "from edits_value import NUMBER as found", None, "edits_value.py"),
    "a module through another": ("from edits_middle import NUMBER", "found = NUMBER", None, "edits_value.py"),
    "a package": ("import edits_package", "found = edits_package.NUMBER", None, "edits_package/__init__.py"),
    "a relative import": (
        "from edits_package.inner import OTHER",
        "found = OTHER",
        None,
        "edits_package/other.py",
    ),
    "a namespace": ("", "from edits_space.deep import NUMBER as found", None, "edits_space/deep.py"),
    "a computed name": (
        "",
        "found = importlib.import_module('edits_' + 'value').NUMBER",
        None,
        "edits_value.py",
    ),
    "the import function": ("", "found = __import__('edits_value').NUMBER", None, "edits_value.py"),
    "spec_from_file_location": ("", BY_LOCATION, None, "edits_value.py"),
    "runpy of a path": (
        "",
        "found = runpy.run_path(HERE / 'edits_value.py')['NUMBER']",
        None,
        "edits_value.py",
    ),
    "runpy of a module": ("", "found = runpy.run_module('edits_value')['NUMBER']", None, "edits_value.py"),
    "exec": (
        "",
        "place = {}\nexec((HERE / 'edits_value.py').read_text(), place)\nfound = place['NUMBER']",
        None,
        "edits_value.py",
    ),
    "a path that it adds": ("", ON_A_PATH, None, "inner/edits_deep.py"),
    "a file beside it": ("", "found = (HERE / 'data.txt').read_text()", None, "data.txt"),
    "a file read when it is imported": (
        "FOUND = (HERE / 'data.txt').read_text()",
        "found = FOUND",
        None,
        "data.txt",
    ),
    "pkgutil": ("", "found = pkgutil.get_data('edits_package', 'data.txt')", None, "edits_package/data.txt"),
    "resources": (
        "from importlib import resources",
        "found = (resources.files('edits_package') / 'data.txt').read_text()",
        None,
        "edits_package/data.txt",
    ),
    "a path": ("", "found = Path(given).read_text()", "{here}/data.txt", "data.txt"),
    "paths in a list": ("", "found = Path(given[0]).read_text()", ["{here}/data.txt"], "data.txt"),
    "a path in a mapping": ("", "found = Path(given['a']).read_text()", {"a": "{here}/data.txt"}, "data.txt"),
    "a path as a key": (
        "",
        "found = Path(next(iter(given))).read_text()",
        {"{here}/data.txt": 1},
        "data.txt",
    ),
    "a path from home": ("", "found = Path(given).expanduser().read_text()", "~/{home}/data.txt", "data.txt"),
    "a directory": (
        "",
        "found = [p.read_text() for p in sorted(Path(given).glob('*.txt'))]",
        "{here}/some",
        "some/a.txt",
    ),
    "a new file of a directory": ("", "found = sorted(os.listdir(given))", "{here}/some", "some/new.txt"),
    "a new file below a directory": ("", WALKED, "{here}/some", "some/deep/new.txt"),
    "a stem": ("", "found = Path(given + '.txt').read_text()", "{here}/data", "data.txt"),
    "a file opened for update": ("", UPDATED, None, "data.txt"),
    "a descriptor": ("", OPENED_LOW, None, "data.txt"),
    "a link": ("", "found = (HERE / 'link.txt').read_text()", None, "link.txt"),
    "a compressed file": ("import gzip", "found = gzip.open(HERE / 'data.gz').read()", None, "data.gz"),
    "an array": ("import numpy", "found = numpy.load(HERE / 'data.npy')", None, "data.npy"),
    "a mapped array": (
        "import numpy",
        "found = numpy.load(HERE / 'data.npy', mmap_mode='r')",
        None,
        "data.npy",
    ),
    "a database": ("", QUERY, None, "data.sqlite"),
    "a file of another working directory": ("", ELSEWHERE, None, "data.txt"),
    "a file read by a thread": ("", IN_A_THREAD, None, "data.txt"),
    "a file that a file names": ("", CHAIN, None, "data.txt"),
    "a file that appears": ("", TRIED, None, "later.txt"),
    "a file that comes to exist": ("", IF_THERE, None, "later.txt"),
    "a module that appears": ("", WITH_FALLBACK, None, "edits_extra.py"),
    "a module that hides another": (
        "",
        "from edits_value import NUMBER as found",
        None,
        "edits_value/__init__.py",
    ),
    "an archive": ("from edits_zipped import NUMBER", "found = NUMBER", None, "code.zip"),
}


def write(place, number):
    """Write everything that some kind reads, with a number in it."""
    code = f"NUMBER = {number}\n"
    files = {
        "edits_value.py": code,
        "edits_middle.py": "from edits_value import NUMBER\n",
        "edits_package/__init__.py": code,
        "edits_package/inner.py": "from .other import NUMBER as OTHER\n",
        "edits_package/other.py": code,
        "edits_package/data.txt": f"{number}\n",
        "edits_space/deep.py": code,
        "inner/edits_deep.py": code,
        "data.txt": f"{number}\n",
        "index.txt": "data.txt\n",
        "some/a.txt": f"{number}\n",
        "some/deep/a.txt": f"{number}\n",
    }
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    for other in (1, 2):
        (place / f"target{other}.txt").write_text(f"{other}\n")
    (place / "link.txt").unlink(missing_ok=True)
    (place / "link.txt").symlink_to(f"target{number}.txt")
    (place / "data.gz").write_bytes(gzip.compress(f"{number}\n".encode(), mtime=0))
    np.save(place / "data.npy", np.array([number]))
    (place / "data.sqlite").unlink(missing_ok=True)
    with sqlite3.connect(place / "data.sqlite") as data:
        data.execute("create table t(n)")
        data.execute("insert into t values (?)", (number,))
    data.close()
    with zipfile.ZipFile(place / "code.zip", "w") as archive:
        archive.writestr("edits_zipped.py", f"NUMBER = {number}\n")


def edit(place, file):
    """Change one file, its size and times where they can stay."""
    path = place / file
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("NUMBER = 2\n")
        return
    before = path.stat()
    if file == "edits_policy.py":
        path.write_text(path.read_text().replace("NUMBER = 1", "NUMBER = 2"))
    else:
        after = place / "after"
        write(after, 2)
        if path.is_symlink():
            path.unlink()
            path.symlink_to("target2.txt")
            return
        path.write_bytes((after / file).read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def placed(value, place):
    """Put the directory into the texts of a parameter."""
    if isinstance(value, dict):
        return {placed(key, place): placed(one, place) for key, one in value.items()}
    if isinstance(value, list):
        return [placed(one, place) for one in value]
    if isinstance(value, str):
        home = os.path.relpath(place, Path.home())
        return value.replace("{here}", str(place)).replace("{home}", home)
    return value


@pytest.fixture
def place(tmp_path, monkeypatch):
    code = tmp_path / "code"
    write(code, 1)
    monkeypatch.syspath_prepend(code)
    monkeypatch.syspath_prepend(code / "code.zip")
    yield code
    for name in [name for name in sys.modules if name.startswith("edits_")]:
        del sys.modules[name]


@pytest.mark.parametrize("kind", KINDS)
def test_an_edit_runs_the_cell_again(config, place, tmp_path, kind):
    head, body, given, file = KINDS[kind]
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    (place / "edits_policy.py").write_text(POLICY.format(head=head, body=lines))
    config["policies"] = [{"name": "edits_policy:Mine"} | ({"given": placed(given, place)} if given else {})]

    def run():
        outcome = g10sim.run(config, output=tmp_path / "out")
        assert not outcome.failures
        return outcome.reused, outcome.rows[0]["message"]

    reused, before = run()
    assert reused == 0
    assert run() == (1, before)
    (tmp_path / "unrelated.txt").write_text("")
    assert run() == (1, before)
    edit(place, file)
    reused, after = run()
    assert reused == 0
    assert after != before
    assert run() == (1, after)


def test_a_library_of_another_version_runs_the_cell_again(config, place, tmp_path):
    installed = tmp_path / "site-packages"
    for version in ("1.0", "2.0"):
        (installed / f"edits_library-{version}.dist-info").mkdir(parents=True)
        (installed / f"edits_library-{version}.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: edits_library\nVersion: {version}\n"
        )
        (installed / "edits_library.py").write_text(f"NUMBER = {version}\n")
        # Python takes what it compiled from a file of the same size and second.
        os.utime(installed / "edits_library.py", (0, float(version)))
        (place / "edits_policy.py").write_text(
            POLICY.format(
                head=f"sys.path.append({str(installed)!r})\nimport edits_library",
                body="        found = edits_library.NUMBER",
            )
        )
        config["policies"] = ["edits_policy:Mine"]
        outcome = g10sim.run(config, output=tmp_path / "out")
        assert (outcome.reused, outcome.rows[0]["message"]) == (0, f"found {version}")
        assert g10sim.run(config, output=tmp_path / "out").reused == 1
        program.version_of.cache_clear()
        (installed / f"edits_library-{version}.dist-info" / "METADATA").unlink()
        (installed / f"edits_library-{version}.dist-info").rmdir()


def test_a_package_that_hides_the_policy_runs_the_cell_again(config, place, tmp_path):
    config["policies"] = ["edits_policy:Mine"]
    for file, found in (("edits_policy.py", 1), ("edits_policy/__init__.py", 2)):
        (place / file).parent.mkdir(exist_ok=True)
        (place / file).write_text(POLICY.format(head="", body=f"        found = {found}"))
        sys.modules.pop("edits_policy", None)
        outcome = g10sim.run(config, output=tmp_path / "out")
        assert (outcome.reused, outcome.rows[0]["message"]) == (0, f"found {found}")
