"""Pages are written in short sentences and in the usual words."""

import re

import pytest
from prose import LONGEST, MEDIAN, PAGES, ROOT, TICS, docstrings, faults, openings, prose, tics

FOLDERS = sorted({path.parent for path in (ROOT / "g10sim").rglob("*.py")})
OTHERS = [ROOT / "plots", ROOT / "benchmarks", ROOT / "docs" / "generate", ROOT / "tools"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short_and_words_are_usual(page):
    found = faults(page)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_says_at_once_for_whom_it_is(page):
    first, second, *_ = prose(page.read_text(encoding="utf-8")).sentences
    assert re.search(r"\b[Ff]or (those|whoever|researchers)\b", f"{first} {second}")


@pytest.mark.parametrize("folder", [*FOLDERS, *OTHERS], ids=lambda folder: str(folder.relative_to(ROOT)))
def test_docstrings_have_the_usual_words(folder):
    found = {path.name: [*tics(docstrings(path)), *openings(path)] for path in folder.glob("*.py")}
    assert {name: phrases for name, phrases in found.items() if phrases} == {}


def sentence(words):
    return " ".join(["Word", *["word"] * (words - 1)]) + "."


def test_a_sentence_ends_where_a_reader_ends_it():
    text = f"""# No sentence

{sentence(LONGEST)} See [a page](which.md#that.is), al. (2023). Version 3.0 of
Vaswani et al. Attention has `one. Word`, `two`, `three` and
`four` more.

    formula = `code` = {sentence(LONGEST + 1)}

- An item
- Another

| a | {sentence(LONGEST + 1)} |
<!-- {sentence(LONGEST + 1)} -->
```sh
{sentence(LONGEST + 1)}
```
"""
    assert prose(text).lengths == [LONGEST, 5, 10, 2, 1]


def test_long_sentences_long_pages_and_phrases_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"{sentence(LONGEST + 1)} It waits for\never.\n", encoding="utf-8")
    long, median, tic = faults(page)
    assert long.startswith(f"{LONGEST + 1} words: Word word")
    assert median == f"median sentence of {(LONGEST + 1 + 4) / 2:g} words, allowed: {MEDIAN}"
    assert tic.endswith(", 1 times: say indefinitely")


def test_every_phrase_is_found_in_docstrings_and_not_in_code(tmp_path):
    said = "for ever, so many, beside, but for, of its own, anew; Tell whether"
    (tmp_path / "module.py").write_text(f'"""{said}."""\nbeside = "anew"\n', encoding="utf-8")
    assert tics(docstrings(tmp_path / "module.py")) == dict.fromkeys(TICS, 1)


def test_a_docstring_that_begins_with_a_question_is_found(tmp_path):
    said = ["What it is.", "How it works.", "Whether a tensor fits.", "The tensor. What is left?"]
    text = "\n\n".join(f'def made():\n    """{one}"""' for one in said)
    (tmp_path / "module.py").write_text(text, encoding="utf-8")
    assert openings(tmp_path / "module.py") == [f'"""{one}' for one in said[:3]]
