"""``g10sim policy``: scaffold of a package for a policy, and a policy watched kernel by kernel."""

from __future__ import annotations

import keyword
import re
import sys
from importlib.metadata import packages_distributions, version
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from jinja2 import Environment, PackageLoader, StrictUndefined
from typer import Argument, Option

from g10sim.cli.options import DEFAULT_SYSTEM, TraceFile, output_to, sizes
from g10sim.cli.output import say
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.presets import load_system
from g10sim.errors import ConfigError
from g10sim.explain.steps import steps
from g10sim.files import writing
from g10sim.policies.interface.registry import available, create
from g10sim.trace.format import load_trace

app = typer.Typer(help="Make a policy of your own, or watch one.", no_args_is_help=True, add_completion=False)

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_FROM_HELP = "First kernel to show, of the last iteration."
First = Annotated[int | None, Option("--from", min=0, help=_FROM_HELP, show_default="all iterations")]
_PAUSE_HELP = "Wait for Enter after every kernel. [default: where it is read from a terminal]"


@app.command()
def new(
    name: Annotated[str, Argument(help="Key of the policy, like my_policy; also the package's name.")],
    output: Annotated[Path | None, output_to("Directory to make.", "./NAME")] = None,
) -> None:
    """Make an installable package with a policy, its tests, a README and an experiment."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        problem = f"policy name: found '{name}'"
        raise ConfigError(f"{problem}; allowed: lower-case words joined by underscores, like my_policy")
    if name in {*available(), "g10sim", *sys.stdlib_module_names, *packages_distributions()}:
        raise ConfigError(f"policy name: found '{name}', which there is already; allowed: a new name")
    target = output if output is not None else Path(name)
    if target.exists():
        raise ConfigError(f"{target}: exists already; allowed: a directory that does not")
    with writing(target, ConfigError, "a writable place"):
        _write(target, name)
    say(f"{target}: a package with policy '{name}'; next: cd {target} && pip install '.[test]' && pytest")


@app.command()
def step(
    file: TraceFile,
    policy: Annotated[str, Argument(help="Name of the policy, or module:Class.")],
    system: Annotated[str, Option(help="Hardware preset or YAML file.")] = DEFAULT_SYSTEM,
    gpu_memory: Annotated[
        str, Option(help="Memory of the GPU, such as '16 GiB'.", show_default="that of the system")
    ] = "",
    iterations: Annotated[int, Option(min=1, max=10_000, help="Iterations to simulate.")] = 2,
    first: First = None,
    count: Annotated[
        int | None, Option(min=1, max=10**6, help="Number of kernels to show.", show_default="all")
    ] = None,
    pause: Annotated[bool | None, Option(help=_PAUSE_HELP)] = None,
) -> None:
    """Show a simulation kernel by kernel: what the policy answered, what moved, how full memories were.

    For traces of a few dozens of kernels; sizes are rounded, times are cycles from the start.
    """
    trace, machine = load_trace(file), load_system(system)
    if gpu_memory:
        (size,) = sizes("--gpu-memory", [gpu_memory])
        machine = machine.with_gpu_memory(size)
    shown = steps(trace, machine, create(policy), BehaviourSpec(), iterations)
    if first is not None:
        if first >= len(trace.kernels):
            raise ConfigError.at("--from", first, f"0 to {len(trace.kernels) - 1}, the last kernel")
        shown = islice(shown, (iterations - 1) * len(trace.kernels) + first, None)
    waits = sys.stdin.isatty() and sys.stdout.isatty() if pause is None else pause
    for lines in islice(shown, count):
        say(*lines)
        if waits and typer.prompt("", default="", prompt_suffix="") == "q":
            break


def _write(target: Path, name: str) -> None:
    """Write the package alongside its place first, so that it appears whole or not at all."""
    templates = Environment(
        loader=PackageLoader("g10sim.cli", "scaffold"),
        autoescape=False,  # Python and YAML of a name that holds letters, digits and underscores only
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    class_name = "".join(word.capitalize() for word in name.split("_"))
    told = {"name": name, "class_name": class_name, "version": version("g10sim")}
    files = {
        "pyproject.toml": "pyproject.toml",
        f"{name}/__init__.py": "policy.py",
        f"tests/test_{name}.py": "test.py",
        "README.md": "README.md",
        "compare.yaml": "compare.yaml",
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as scratch:
        package = Path(scratch) / "package"
        for path, template in files.items():
            text = templates.get_template(f"{template}.jinja").render(told)
            (package / path).parent.mkdir(parents=True, exist_ok=True)
            (package / path).write_text(text, encoding="utf-8")
        package.rename(target)
