"""Mutants of a small module, written down by hand."""

from pathlib import Path

import pytest

from benchmarks.mutants import defaults_in, mutants_of, sample
from benchmarks.noticed import EQUIVALENT, by_module, equivalents, score

ROOT = Path(__file__).parents[2]

SOURCE = '''
"""Not changed."""

LIMIT = 3


class Box:
    """Not changed."""

    def __repr__(self) -> str:
        return f"box of {1 + 1}"

    def add(self, item: int, times: int = 1) -> int | None:
        """Not changed."""
        if item < LIMIT and times:
            self.items.append(max(item, times - 1))
            return self.add(item, times=2)
        raise ValueError(f"found {item + 1}")


def empty(box: Box) -> bool:
    while not box.items:
        return True
    return any(item == 4 for item in box.items if item)
'''


@pytest.fixture
def found(tmp_path):
    path = tmp_path / "box.py"
    path.write_text(SOURCE)
    return list(mutants_of(path, tmp_path, defaults_in([path])))


def test_what_is_changed(found):
    changes = [(mutant.function, mutant.before, mutant.after) for mutant in found if mutant.code()]
    calls = "self.items.append(max(item, times - 1))", "return self.add(item, times=2)"
    generated = "any((item == 4 for item in box.items if item))"
    assert sorted(changes) == sorted(
        [
            ("Box.add", "item < LIMIT and times", "not (item < LIMIT and times)"),
            ("Box.add", "item < LIMIT and times", "item < LIMIT or times"),
            ("Box.add", "item < LIMIT", "item <= LIMIT"),
            ("Box.add", calls[0], "pass"),
            ("Box.add", "max", "min"),
            ("Box.add", "times - 1", "times + 1"),
            ("Box.add", "1", "2"),
            ("Box.add", calls[1], "return None"),
            ("Box.add", "self.add(item, times=2)", "self.add(item)"),
            ("Box.add", "2", "3"),
            ("empty", "not box.items", "box.items"),
            ("empty", "True", "False"),
            ("empty", f"return {generated}", "return None"),
            ("empty", "any", "all"),
            ("empty", "item == 4", "item != 4"),
            ("empty", "4", "5"),
            ("empty", "item", "not item"),
        ]
    )


def test_a_changed_function_does_what_the_change_says(found):
    (negated,) = [mutant for mutant in found if mutant.after == "box.items"]
    names = {}
    exec(compile(SOURCE, "box.py", "exec"), names)
    box = names["Box"]()
    box.items = [4]
    assert names["empty"](box) is True
    assert names["empty"].__code__.co_firstlineno == negated.code().co_firstlineno
    box.items = []
    assert names["empty"](box) is True
    names["empty"].__code__ = negated.code()
    assert names["empty"](box) is False
    assert (negated.line, list(negated.lines)) == (22, [22])


def test_the_same_mutants_are_drawn_whatever_others_there_are(found):
    drawn = sample(found, 5, seed=1)
    assert len(drawn) == 5
    fewer = [mutant for mutant in found if mutant in drawn or mutant.function == "empty"]
    assert [m.name for m in sample(fewer, 5, seed=1)] == [m.name for m in drawn]
    assert [m.name for m in sample(found, 5, seed=2)] != [m.name for m in drawn]


def test_the_score_leaves_out_what_is_equivalent():
    rows = [
        {"module": "g10sim/sim/a.py", "outcome": outcome}
        for outcome in ("killed", "killed", "killed", "survived", EQUIVALENT)
    ] + [{"module": f"g10sim/{name}.py", "outcome": "survived"} for name in ("results/b", "sizing/c")]
    assert score(rows).share == 3 / 6
    assert {package: found.share for package, found in by_module(rows).items()} == {
        "g10sim/sim": 0.75,
        "g10sim/results": 0.0,
        "g10sim/sizing": 0.0,
    }


@pytest.mark.slow
def test_every_equivalent_mutant_is_one_of_todays_program():
    listed = equivalents()
    modules = sorted({name.partition(" ")[0] for name in listed})
    defaults = defaults_in(sorted((ROOT / "g10sim").rglob("*.py"))) if listed else set()
    known = {mutant.name for module in modules for mutant in mutants_of(ROOT / module, ROOT, defaults)}
    assert [name for name in listed if name not in known] == []
