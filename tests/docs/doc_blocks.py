"""Finds the code blocks of a page, with the directives in the comment before them.

``python tests/docs/doc_blocks.py PAGE`` prints the commands of the blocks that install, a line each.

A comment ``<!-- test: DIRECTIVE; DIRECTIVE -->`` right before a block says how the test treats it:

- ``install``: not run here; ``.ci/run`` runs those of the README
- ``reference``: needs the published data; ``torch``: needs PyTorch
- ``file NAME``: save the block under this name (every block of YAML says where)
- ``run COMMAND``: run this first
- ``with A => B``: replace text A by B, to make the input small
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^( *)```(\w*)\s*$")
_DIRECTIVES = re.compile(r"<!--\s*test:\s*(.*?)\s*-->")
LANGUAGES = ("sh", "python", "yaml")


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    line: int
    language: str
    text: str
    directives: tuple[str, ...]

    def has(self, name):
        return name in self.directives

    def values(self, name):
        return [text.removeprefix(f"{name} ") for text in self.directives if text.startswith(f"{name} ")]

    @property
    def code(self):
        """Text with the replacements made."""
        text = self.text
        for change in self.values("with"):
            old, new = change.split(" => ")
            assert old in text, f"line {self.line}: nothing to replace: {old}"
            text = text.replace(old, new)
        return text


def blocks(page):
    """Return the blocks of a page that are shell commands, Python or YAML."""
    found, directives, lines = [], (), page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        comment = _DIRECTIVES.fullmatch(lines[number].strip())
        fence = _FENCE.match(lines[number])
        if comment:
            directives = tuple(part.strip() for part in comment[1].split(";"))
        elif fence:
            start = number
            number += 1
            while not lines[number].strip().startswith("```"):
                number += 1
            if fence[2] in LANGUAGES:
                text = "\n".join(lines[start + 1 : number]) + "\n"
                found.append(Block(start + 1, fence[2], text, directives))
            directives = ()
        elif lines[number].strip():
            assert not directives, f"{page}: line {number + 1}: directives without a block"
        number += 1
    return found


def installing(page):
    """Return the commands of the blocks that install."""
    return [block.text.strip() for block in blocks(page) if block.has("install")]


if __name__ == "__main__":
    sys.stdout.writelines(f"{command}\n" for command in installing(Path(sys.argv[1])))
