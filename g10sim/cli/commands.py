"""The commands by name: a command's module is imported when the command is used."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Option
from typer.core import TyperCommand, TyperGroup

import g10sim
from g10sim.cli.output import say
from g10sim.sim import IS_COMPILED

_FUNCTIONS = (
    *("run", "validate", "claims", "measured", "reproduce", "plot", "explain", "execute", "timeline"),
    *("report", "bound", "size", "policies", "system"),
)
"""Commands that are functions of their names."""
_MODULES = dict.fromkeys(("validate", "claims", "measured"), "published")
_MODULES |= {"plot": "reproduce", "report": "reproduce", "policies": "system"}
"""Modules of commands that have not the names of their modules."""
MARKUP: Literal["markdown"] = "markdown"
"""Form of help texts: text in brackets stays as it is."""
_GROUPS = ("trace", "plan", "policy", "calibrate")
"""Modules of groups of commands, each the ``app`` of its module."""


class _LazyGroup(TyperGroup):
    """Commands that are imported when they are used; to list them, their texts are read from the source."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        names: Any = dict.fromkeys((*_FUNCTIONS, *_GROUPS))
        self.commands = names
        self._lists = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name; None if there is none."""
        if cmd_name not in self.commands:
            return None
        return _listed(cmd_name) if self._lists else _imported(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the group itself."""
        self._lists = True
        _plain(self)
        super().format_help(ctx, formatter)


def import_for(words: Sequence[str]) -> None:
    """Import what the command needs that a command line names."""
    name = next((word for word in words if not word.startswith("-")), "")
    if name in _FUNCTIONS or name in _GROUPS:
        _imported(name)


def _imported(name: str) -> Any:
    module = import_module(f"g10sim.cli.{_MODULES.get(name, name)}")
    if name in _GROUPS:
        module.app.rich_markup_mode = MARKUP
        group = typer.main.get_command(module.app)
        group.name = name
        return _plain(group)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=MARKUP)
    app.command(name)(getattr(module, name))
    return _plain(typer.main.get_command(app))


def _plain(command: Any) -> Any:
    """Name arguments in capitals, as texts do, and no type alongside flags; keep summaries whole."""
    command.short_help = " ".join((command.help or "").partition("\n\n")[0].split())
    for parameter in [*command.params, command.get_help_option(typer.Context(command))]:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        elif parameter.param_type_name == "argument" and parameter.metavar is None:
            parameter.metavar = parameter.name.upper()
    for member in filter(None, getattr(command, "commands", {}).values()):
        _plain(member)
    return command


def _listed(name: str) -> TyperCommand:
    """Return a command that can do nothing but be listed with its help."""
    source = Path(__file__).with_name(f"{_MODULES.get(name, name)}.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name and name in _FUNCTIONS:
            return TyperCommand(name, help=ast.get_docstring(node))
        if name in _GROUPS and isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "app":
            texts = {word.arg: word.value for word in getattr(node.value, "keywords", ())}
            return TyperCommand(name, help=ast.literal_eval(texts["help"]))
    raise LookupError(name)


app = typer.Typer(
    cls=_LazyGroup,
    name="g10sim",
    help="Simulate training with tensors in GPU memory, host memory and flash.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"g10sim {g10sim.__version__}" + (", compiled" if IS_COMPILED else ""))
        raise typer.Exit


@app.callback()
def _g10sim(
    version: Annotated[
        bool, Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Take no options but that of the version."""
