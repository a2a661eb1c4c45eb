"""Plug-ins whose result is a text that other files decide, and an executor in this process."""

import os

from g10sim.experiment.execution import run_cell

POLICY = """\
import importlib
from pathlib import Path
from changing_base import Base
from changing_helper import HELPER
from changing_package.inner import INNER
from g10sim.results.columns import OK
from g10sim.errors import UnsupportedError


OWN = 1


class Mine(Base):
    name = "mine"

    def __init__(self, *, data="", more=(), plan_file="", log="", seed=0):
        self.data, self.more, self.plan_file, self.log, self.seed = data, more, plan_file, log, seed

    def plan_job(self, job, system, behaviour):
        from changing_late import LATE

        found = [OWN, HELPER, INNER, LATE, self.base(), importlib.import_module("changing_" + "named").NAMED]
        found += [Path(path).read_text().strip() for path in (self.data, *self.more, self.plan_file) if path]
        if self.log:
            with open(self.log, "a") as file:
                file.write("planned\\n")
        raise UnsupportedError(" ".join(map(str, found)))
"""
FILES = {
    "changing_policy.py": POLICY,
    "changing_base.py": "from g10sim.policies.interface.policy import Policy\n\n\nclass Base(Policy):\n"
    '    name = "base"\n\n    def base(self):\n        return 1\n',
    "changing_helper.py": "HELPER = 1\n",
    "changing_late.py": "LATE = 1\n",
    "changing_named.py": "NAMED = 1\n",
    "changing_package/__init__.py": "OUTER = 1\n",
    "changing_package/inner.py": "from . import OUTER\n\nSECOND = 1\nINNER = f'{OUTER}{SECOND}'\n",
    "data.txt": "= 1\n",
    "more.txt": "= 1\n",
    "plan.txt": "= 1\n",
}
"""Files of a plug-in; each holds a number that its result shows."""


def write(directory):
    """Write the plug-in, and return its entry in a configuration."""
    for name, text in FILES.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    return {
        "name": "changing_policy:Mine",
        "data": str(directory / "data.txt"),
        "more": [str(directory / "more.txt")],
        "plan_file": str(directory / "plan.txt"),
        "log": str(directory / "log.txt"),
    }


def edit(path, old=1, new=2):
    """Replace the number of a file by another; its size and times stay the same."""
    before, text = path.stat(), path.read_text()
    for form in ("= {}\n", "return {}\n"):
        text = text.replace(form.format(old), form.format(new))
    assert text != path.read_text()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


class InThisProcess:
    """Simulates cells one after the other, without processes of their own."""

    def run(self, tasks):
        for task in tasks:
            yield task, run_cell(task, 0)
