"""Measures the English of the pages: length of sentences, and phrases that the project does not use.

``python tests/docs/prose.py [PAGE ...]`` prints a line for each page, and every sentence that is too long;
without a page it takes all, and counts the phrases in the source as well.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LONGEST = 35
"""Most words in a sentence."""
MEDIAN = 16
"""Most words in the median sentence of a page."""
TICS = {
    r"\bfor ever\b": "indefinitely",
    r"\bso many\b": "that many, or the number",
    r"\bbeside\b": "next to, with, against, compared with",
    r"\bbut for\b": "except",
    r"\bof (?:its|their) own\b": "its own ..., separate",
    r"\banew\b": "again",
    r"\b[Tt]ells? whether\b": "return True if",
}
"""Phrases to avoid, as regular expressions, each with what to say instead."""

OPENINGS = re.compile(r'"""(?:What|Whether|Who|Why|How|When|Where|Tells? whether)\b[^"\n]*')
"""Beginnings of docstrings that name a question in place of the thing."""

_GENERATED = re.compile(r"<!-- parameters of .*?<!-- end of parameters -->", re.DOTALL)
_NO_PROSE = re.compile(
    r"^ *```.*?^ *```[^\n]*$|<!--.*?-->|(?<=\n\n)(?: {4}[^\n]*\n)+", re.MULTILINE | re.DOTALL
)
_NAMES = re.compile(r"`code`(?:(?:,| and| or|, and|, or)\s+`code`)+")
_ENDS = re.compile(r"(?<=[.?!])[)\"*]*\s+(?=[\"(*\[]*[A-Z0-9`])")
_NO_END = re.compile(r"(?:\b(?:al|vol|no|pp|vs|cf)|\b[eE]\.g|\bi\.e)\.$")
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
_DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)


@dataclass(frozen=True)
class Prose:
    """Sentences of a page, without code, tables, headings and comments."""

    sentences: tuple[str, ...]

    @property
    def lengths(self):
        return [len(re.findall(r"\S*\w\S*", sentence)) for sentence in self.sentences]

    @property
    def median(self):
        return median(self.lengths) if self.sentences else 0

    @property
    def long(self):
        """Sentences of more than LONGEST words."""
        counted = zip(self.sentences, self.lengths, strict=True)
        return [sentence for sentence, words in counted if words > LONGEST]


def prose(text):
    """Return the prose of a page.

    Code within a line counts as a word, and so does a list of nothing else, such as names of columns.
    """
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`\n]*`", "`code`", _NO_PROSE.sub("\n\n", text)))
    text = _NAMES.sub("`code`", text)
    paragraphs = [[]]
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith(("|", "#", "![", "$$")):
            paragraphs.append([])
        elif _ITEM.match(line):
            paragraphs.append([_ITEM.sub("", line)])
        else:
            paragraphs[-1].append(line.strip())
    return Prose(tuple(sentence for lines in paragraphs for sentence in _sentences(" ".join(lines))))


def _sentences(paragraph):
    found = []
    for part in _ENDS.split(paragraph):
        if found and _NO_END.search(found[-1]):
            found[-1] += f" {part}"
        elif part:
            found.append(part)
    return found


def tics(text):
    """Return the phrases to avoid in a text, with how often each occurs."""
    found = {tic: len(re.findall(tic.replace(" ", r"\s+"), text)) for tic in TICS}
    return {tic: number for tic, number in found.items() if number}


def docstrings(path):
    """Return the docstrings of a module as one text, without code."""
    return re.sub(r"``[^`]*``", "", "\n".join(_DOCSTRING.findall(path.read_text(encoding="utf-8"))))


def openings(path):
    """Return the docstrings of a module that begin with a question."""
    return OPENINGS.findall(path.read_text(encoding="utf-8"))


def faults(page):
    """Return what is to be mended on a page, a line each."""
    text = page.read_text(encoding="utf-8")
    measured = prose(text)
    found = [f"{len(sentence.split())} words: {sentence}" for sentence in measured.long]
    if measured.median > MEDIAN:
        found.append(f"median sentence of {measured.median:g} words, allowed: {MEDIAN}")
    return found + [f"{tic}, {number} times: say {TICS[tic]}" for tic, number in tics(_plain(text)).items()]


def _plain(text):
    """Return a page without code, links and what comes from docstrings, but with its tables."""
    return re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", _NO_PROSE.sub("", _GENERATED.sub("", text)))


def report(pages):
    """Return a line for each page, with what is to be mended if only some are asked for."""
    for page in pages or PAGES:
        text = page.read_text(encoding="utf-8")
        measured, phrases = prose(text), sum(tics(_plain(text)).values())
        counts = f"{len(measured.sentences)} sentences, median {measured.median:g}"
        yield f"{page.relative_to(ROOT)}: {counts}, {len(measured.long)} long, {phrases} tics"
        yield from (f"  {fault}" for fault in faults(page) if pages)
    if not pages:
        modules = sorted((ROOT / "g10sim").rglob("*.py"))
        yield f"docstrings: {tics(''.join(map(docstrings, modules)))}"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in report([Path(name).resolve() for name in sys.argv[1:]]))
