"""The page of every command with its options, from their definitions."""

from __future__ import annotations

import re

import typer
from typer.cli import get_docs_for_click

from g10sim.cli.commands import app

_HEAD = """# Commands

For those who look up a command or an option.

Written by `python docs/generate commands` from their definitions; `g10sim COMMAND --help` shows the same.
"""


def page() -> str:
    """Return the page as Markdown."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="g10sim", title="")
    lines = (line.rstrip() for line in text.splitlines())
    body = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    return f"{_HEAD}\n{body}\n"
