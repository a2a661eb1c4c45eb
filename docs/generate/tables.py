"""Markdown of the generated pages: templates, and tables to fill them with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=False,  # Markdown
    undefined=StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
    finalize=lambda value: str(value).rstrip("\n"),
)


def fill(page: str, **parts: object) -> str:
    """Return the template ``PAGE.md`` with its parts filled in."""
    return _TEMPLATES.get_template(f"{page}.md").render(parts)


@cache
def titles(page: str) -> dict[str, str]:
    """Titles of the sections of a template by the last part that each is filled with."""
    source, _, _ = _TEMPLATES.loader.get_source(_TEMPLATES, f"{page}.md")
    sections = re.split(r"^##+ ", source, flags=re.MULTILINE)[1:]
    return {
        section.rpartition("{{")[2].partition("}}")[0].strip(): section.partition("\n")[0].strip("`")
        for section in sections
    }


def table(names: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table: columns of names to the left, right-aligned columns of numbers after them."""
    lines = [_line([*names, *numbers]), "|" + "---|" * len(names) + "---:|" * len(numbers)]
    return "\n".join([*lines, *map(_line, rows)]) + "\n"


def _line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"
