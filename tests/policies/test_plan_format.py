"""Plan files: ours and the published simulator's."""

import gzip
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from g10sim.errors import PlanError
from g10sim.policies.interface.moves import Await, Drop, Evict, Fetch, Free, KeepUncompressed, Protect
from g10sim.policies.interface.plan import MigrationPlan, Planned, compare_plans
from g10sim.policies.interface.plan_format import load_plan, read_prefetch_guide, save_plan
from g10sim.trace.format import trace_hash
from g10sim.trace.synthetic import chain

PLAN = MigrationPlan(
    (
        Planned(0, Fetch(3)),
        Planned(0, Evict(1)),
        Planned(2, Evict(0, "ssd")),
        Planned(6, Free(3)),
    ),
    planner="by hand",
)
GUIDE = [
    "Issued Time: 0 Tensor: 3 G:x From: Not_Known, To: In_gpu",
    "Issued Time: 0 Tensor: 1 G:o From: Not_Known, To: In_cpu",
    "Issued Time: 2 Tensor: 0 G:x From: Not_Known, To: In_ssd",
    "Issued Time: 6 Tensor: 3 G:x From: Not_Known, To: Not_present",
]
IN_ONE_DIRECTORY = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)


def moves(last):
    """Moves of every kind, with all their options, of tensors up to ``last``."""
    tensor, some = st.integers(0, last), st.frozensets(st.integers(0, last))
    return st.one_of(
        st.builds(Fetch, tensor),
        st.builds(
            Evict,
            tensor,
            st.sampled_from(["host", "ssd"]),
            st.none() | st.integers(0, 9),
            st.none() | st.floats(0, 1),
            st.booleans(),
        ),
        st.builds(Free, tensor),
        st.builds(Drop, tensor),
        st.builds(Protect, some),
        st.builds(Await, st.none() | some, st.booleans(), st.booleans()),
        st.just(KeepUncompressed()),
    )


@pytest.fixture
def trace():
    """Six kernels."""
    return chain(2)


@pytest.fixture
def file(tmp_path, trace):
    path = tmp_path / "plan.g10p"
    save_plan(PLAN, path, trace)
    return path


@pytest.mark.parametrize("name", ["prefetch_guide.config", "prefetch_guide.config.gz"])
def test_a_guide_without_moves_is_a_plan(tmp_path, trace, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"") if name.endswith("gz") else b"")
    assert load_plan(path, trace) == MigrationPlan((), "prefetch_guide")


def error_of(path, trace=None):
    with pytest.raises(PlanError) as found:
        load_plan(path, trace)
    message = str(found.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def test_a_plan_of_ours_without_moves_is_a_plan_but_an_empty_file_is_none(tmp_path, trace):
    path = tmp_path / "plan.g10p"
    save_plan(MigrationPlan((), "nobody"), path, trace)
    assert load_plan(path, trace) == MigrationPlan((), "nobody")
    path.write_bytes(b"")
    assert error_of(path) == "line 1: found the end of the file; allowed: a header"


def rewritten(path, index, **changes):
    records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    records[0].pop("sha256")
    records[index].update(changes)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_plan_comes_back(file, trace):
    assert load_plan(file, trace) == PLAN
    assert load_plan(file) == PLAN


def first_version(path, *moves):
    header = {"format": "g10sim-plan", "version": 1, "moves": len(moves)}
    path.write_text("".join(json.dumps(record) + "\n" for record in (header, *moves)))
    return path


def test_a_plan_of_the_first_version_names_places(tmp_path, trace):
    places = [("gpu", False), ("host", False), ("flash", False), ("none", False), ("none", True)]
    records = [
        {"kernel": kernel, "tensor": 1, "target": place, "recompute": recompute, "delay_cycles": kernel}
        for kernel, (place, recompute) in enumerate(places)
    ]
    made = [Fetch(1), Evict(1), Evict(1, "ssd"), Free(1), Drop(1)]
    expected = tuple(Planned(kernel, move, kernel) for kernel, move in enumerate(made))
    assert load_plan(first_version(tmp_path / "plan.g10p", *records), trace).moves == expected
    path = first_version(tmp_path / "plan.g10p", {**records[1], "recompute": True})
    assert error_of(path, trace) == "line 2: found target host with 'recompute'; allowed: none"


def test_header_names_planner_and_trace(file, trace):
    header = json.loads(gzip.decompress(file.read_bytes()).splitlines()[0])
    assert (header["planner"], header["trace"], header["moves"]) == ("by hand", trace_hash(trace), 4)


def test_plan_for_no_trace_fits_any(tmp_path):
    save_plan(PLAN, tmp_path / "any.g10p")
    assert load_plan(tmp_path / "any.g10p", chain(3)) == PLAN


def test_plan_for_another_trace_is_refused(file, trace):
    other = chain(2, forward_ticks=7)
    assert error_of(file, other) == (
        f"line 1: found a plan for the trace with sha256 '{trace_hash(trace)[:16]}...'; "
        f"allowed: one for '{trace_hash(other)[:16]}...' (chain2, batch size 1)"
    )


@given(data=st.data())
@IN_ONE_DIRECTORY
def test_random_plans_come_back(tmp_path, data):
    move = st.builds(Planned, st.integers(0, 9), moves(9), st.integers(0, 2))
    plan = MigrationPlan.ordered(data.draw(st.lists(move)), data.draw(st.text(max_size=5)))
    save_plan(plan, tmp_path / "p.g10p")
    assert load_plan(tmp_path / "p.g10p") == plan


@given(data=st.data())
@IN_ONE_DIRECTORY
def test_changed_files_are_plan_errors_or_the_same_plan(tmp_path, data):
    path = tmp_path / "p.g10p"
    save_plan(PLAN, path)
    text = gzip.decompress(path.read_bytes()).decode()
    position = data.draw(st.integers(0, len(text) - 1))
    changed = (
        text[:position] + data.draw(st.text(max_size=3)) + text[position + data.draw(st.integers(0, 30)) :]
    )
    path.write_text(changed if '"sha256":"' in changed else text)
    try:
        good = load_plan(path) == PLAN
    except PlanError as error:
        good = str(error).startswith(f"{path}: ") and "; allowed: " in str(error)
    assert good


def test_guide_is_read_in_its_order(tmp_path, trace):
    path = tmp_path / "prefetch_guide.other.config"
    path.write_text("".join(f"{line}\n" for line in GUIDE))
    assert load_plan(path, trace).moves == PLAN.moves
    zipped = tmp_path / "prefetch_guide.other.config.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert read_prefetch_guide(zipped) == MigrationPlan(PLAN.moves, "prefetch_guide.other")


def test_bad_guide_line(tmp_path):
    path = tmp_path / "guide"
    path.write_text(f"{GUIDE[0]}\n{GUIDE[1].replace('In_cpu', 'In_tape')}\n")
    assert error_of(path) == (
        "line 2: found 'Issued Time: 0 Tensor: 1 G:o From: Not_Known, To: In_tape'; allowed: 'Issued Time: "
        "KERNEL Tensor: TENSOR G:x|o From: PLACE, To: In_gpu|In_cpu|In_ssd|Not_present'"
    )


def test_guide_with_unknown_tensor(tmp_path, trace):
    path = tmp_path / "guide"
    path.write_text(f"{GUIDE[0]}\n{GUIDE[1].replace('Tensor: 1', 'Tensor: 99')}\n")
    tensors = len(trace.tensors)
    assert error_of(path, trace) == (
        f"line 2: found unknown tensor 99; allowed: 0 to {tensors - 1} (the trace has {tensors} tensors)"
    )


MOVE_CASES = [
    ({"tensor": 50}, "line 3: found unknown tensor 50; allowed: 0 to 9 (the trace has 10 tensors)"),
    ({"tensor": -1}, "line 3: found unknown tensor -1; allowed: 0 to 9 (the trace has 10 tensors)"),
    ({"kernel": 7}, "line 3: found kernel 7; allowed: 0 to 6 (the trace has 6 kernels)"),
    ({"kernel": 3}, "line 4: found kernel 2 after kernel 3; allowed: kernels in ascending order"),
    (
        {"move": "keep_uncompressed"},
        "line 3: found unknown key 'tensor'; allowed: kernel, move, delay_cycles",
    ),
    ({"target": 3}, "line 3: target: found 3; allowed: a valid string"),
    ({"until": "soon"}, "line 3: until: found 'soon'; allowed: a valid integer"),
    ({"kernel": "0"}, "line 3: kernel: found '0'; allowed: an integer"),
    (
        {"when": 1},
        "line 3: found unknown key 'when'; allowed: kernel, move, delay_cycles, tensor, target, until, "
        "density, is_clean, size_bytes",
    ),
]


@pytest.mark.parametrize(("changes", "message"), MOVE_CASES)
def test_move_messages(file, trace, changes, message):
    assert error_of(rewritten(file, 2, **changes), trace) == message


def test_without_a_trace_only_the_form_is_checked(file):
    assert load_plan(rewritten(file, 4, tensor=50, kernel=99)).moves[3] == Planned(99, Free(50))


def test_file_of_another_kind(tmp_path):
    path = tmp_path / "x.g10p"
    path.write_text('{"format": "g10sim-trace", "version": 1}\n')
    assert error_of(path) == "line 1: found format 'g10sim-trace'; allowed: 'g10sim-plan'"
    assert "cannot be read: No such file" in error_of(tmp_path / "none")


def test_too_few_and_too_many_moves(file):
    assert "line 6: found the end of the file; allowed: a kernel" in error_of(rewritten(file, 0, moves=5))
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0].replace('"moves": 5', '"moves": 3'), *lines[1:]]))
    assert error_of(file).endswith("; allowed: nothing (the header promises 3 moves)")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (Planned(0.5, Fetch(0)), "found kernel 0.5; allowed: an int"),
        (Planned(0, Fetch(0), "2"), "found delay_cycles '2'; allowed: an int"),
        (Planned(0, Evict(0, until=True)), "found until True of move 'evict'; allowed: an int or None"),
        (
            Planned(0, Evict(0, density="half")),
            "found density 'half' of move 'evict'; allowed: a number or None",
        ),
        (Planned(0, Fetch(0, recalls="no")), "found recalls 'no' of move 'fetch'; allowed: True or False"),
        (Planned(0, Await(0)), "found 0 as tensors; allowed: a set of tensors"),
        (Planned(0, 3), "found Planned(kernel=0, move=3, delay_cycles=0); allowed: Planned(kernel, move)"),
    ],
)
def test_plan_with_a_value_of_another_type_is_not_written(tmp_path, entry, said):
    with pytest.raises(PlanError) as error:
        save_plan(MigrationPlan((entry,)), tmp_path / "plan.g10p")
    assert str(error.value) == f"{tmp_path / 'plan.g10p'}: not written: move 0: {said}"
    assert not list(tmp_path.iterdir())


def test_plan_that_does_not_fit_is_not_written(tmp_path, trace):
    plan = MigrationPlan((Planned(0, Fetch(77)),))
    with pytest.raises(PlanError, match="not written: move 0: found unknown tensor 77; allowed: 0 to 9"):
        save_plan(plan, tmp_path / "p.g10p", trace)
    assert list(tmp_path.iterdir()) == []


def test_comparison():
    second = MigrationPlan(
        (
            Planned(0, Evict(1)),
            Planned(1, Fetch(3)),
            Planned(2, Evict(0)),
            Planned(6, Free(3)),
        )
    )
    found = compare_plans(PLAN, second)
    assert found.same == (PLAN.moves[1], PLAN.moves[3])
    assert found.shifted == ((PLAN.moves[0], second.moves[1]),)
    assert found.only_first == (PLAN.moves[2],)
    assert found.only_second == (second.moves[2],)
    assert found.same_order


def test_comparison_sees_another_order_and_repeated_moves():
    move, other = PLAN.moves[:2]
    found = compare_plans(MigrationPlan((move, other, move)), MigrationPlan((other, move)))
    assert (found.same, found.only_first, found.only_second) == ((move, other), (move,), ())
    assert not found.same_order


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_comparison_accounts_for_every_move(data):
    move = st.builds(Planned, st.integers(0, 5), moves(3))
    first, second = (MigrationPlan.ordered(data.draw(st.lists(move))) for _ in range(2))
    found = compare_plans(first, second)
    matched = len(found.same) + len(found.shifted)
    assert matched + len(found.only_first) == len(first.moves)
    assert matched + len(found.only_second) == len(second.moves)
    assert not {entry.move for entry in found.only_first} & {entry.move for entry in found.only_second}
    assert compare_plans(first, first).same == first.moves
