"""Mutants: small changes of the program's functions, each of which some test should notice.

A mutant changes one expression or statement inside a function. Nothing is changed that only people read:
docstrings, annotations, formatted texts, errors that are raised, assertions, and how objects are written.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_PAIRS: tuple[tuple[type[ast.AST], type[ast.AST]], ...] = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
    *((ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv), (ast.BitAnd, ast.BitOr), (ast.And, ast.Or)),
)
_SWAPS = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
_SWAPS |= {ast.Div: ast.Mult, ast.Mod: ast.FloorDiv}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SILENT = ("__repr__", "__str__")
_UNREAD = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)


@dataclass(frozen=True)
class _Place:
    """Place of a node in a tree: a field of its parent, and which of several."""

    parent: ast.AST
    field: str
    index: int | None

    def put(self, node: ast.AST) -> None:
        """Put a node there."""
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


@dataclass(frozen=True)
class _Change:
    """A node, what to put in its place instead, and the statement around it."""

    operator: str
    node: ast.AST
    after: ast.AST
    place: _Place
    statement: ast.stmt


@dataclass(frozen=True)
class Mutant:
    """One change: ``before`` becomes ``after`` in a function (by its qualified name) of a module.

    ``number`` tells apart equal changes of one function.
    """

    module: str
    function: str
    number: int
    change: _Change
    tree: ast.Module
    definition: Function
    before: str
    after: str

    @property
    def name(self) -> str:
        """Identity of the mutant as long as the function keeps the statement."""
        text = f"{self.module} {self.function} {self.number}: {self.before} -> {self.after}"
        return " ".join(text.split())

    @property
    def line(self) -> int:
        """Line of the change."""
        return getattr(self.change.node, "lineno", self.change.statement.lineno)

    @property
    def lines(self) -> range:
        """Lines of the statement around it, or of what stands before its body."""
        statement = self.change.statement
        body = getattr(statement, "body", None)
        last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
        return range(statement.lineno, max(last, statement.lineno) + 1)

    def rank(self, seed: int) -> str:
        """Return its place among all mutants of a module: random, and independent of the others."""
        return hashlib.sha256(f"{seed} {self.name}".encode()).hexdigest()

    def code(self) -> CodeType | None:
        """Return the code of the changed function, or None where the change makes no program of it."""
        change = self.change
        original = self._compiled()
        try:
            change.place.put(change.after)
            changed = self._compiled()
        except (SyntaxError, ValueError, TypeError):
            return None
        finally:
            change.place.put(change.node)
        return None if changed == original or changed.co_freevars != original.co_freevars else changed

    def _compiled(self) -> CodeType:
        """Compile the module and return the function's code, found by where it begins."""
        module = compile(ast.fix_missing_locations(self.tree), self.module, "exec", dont_inherit=True)
        first = min([self.definition.lineno, *(one.lineno for one in self.definition.decorator_list)])
        pending = [module]
        while pending:
            code = pending.pop()
            if code.co_name == self.definition.name and code.co_firstlineno == first:
                return code
            pending += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        raise ValueError(f"{self.module}: {self.function} has no code")


def mutants_of(path: Path, root: Path, defaults: set[tuple[str, str]]) -> Iterator[Mutant]:
    """Yield every mutant of a module; ``defaults`` are (function, keyword) that a call may leave out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    seen: Counter[tuple[str, str, str]] = Counter()
    for name, function in _functions(tree):
        for change in _changes(function, defaults):
            before, after = ast.unparse(change.node), ast.unparse(change.after)
            seen[name, before, after] += 1
            number = seen[name, before, after]
            module = path.relative_to(root).as_posix()
            yield Mutant(module, name, number, change, tree, function, before, after)


def defaults_in(paths: Iterable[Path]) -> set[tuple[str, str]]:
    """Return (function or class, keyword) of every parameter of modules that has a default."""
    found = set()
    for path in paths:
        for name, function in _functions(ast.parse(path.read_text(encoding="utf-8")), nested=True):
            *_, owner, last = ("", *name.split("."))
            called = owner if last == "__init__" else last
            arguments = function.args
            optional = arguments.args[len(arguments.args) - len(arguments.defaults) :]
            keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            names = [one.arg for one in optional] + [one.arg for one, given in keywords if given is not None]
            found.update((called, keyword) for keyword in names)
    return found


def sample(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Draw about ``count`` mutants, from every module in proportion to how many it has, at least one."""
    by_module: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        by_module.setdefault(mutant.module, []).append(mutant)
    drawn = []
    for group in by_module.values():
        share = max(1, round(count * len(group) / len(mutants)))
        ranked = sorted(group, key=lambda mutant: mutant.rank(seed))
        drawn += islice((mutant for mutant in ranked if mutant.code() is not None), share)
    return drawn


def _functions(tree: ast.AST, prefix: str = "", *, nested: bool = False) -> Iterator[tuple[str, Function]]:
    """Yield functions and methods with their qualified names; those inside functions only if ``nested``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.", nested=nested)
        elif isinstance(node, Function):
            yield prefix + node.name, node
            if nested:
                yield from _functions(node, f"{prefix}{node.name}.", nested=True)
        elif isinstance(node, ast.If) and not prefix:
            continue  # imports for type checkers
        elif nested:
            yield from _functions(node, prefix, nested=True)


def _changes(function: Function, defaults: set[tuple[str, str]]) -> Iterator[_Change]:
    if function.name in _SILENT or _writes_text(function):
        return
    for index, statement in enumerate(function.body):
        if not _is_docstring(statement):
            yield from _below(statement, _Place(function, "body", index), statement, defaults)


def _writes_text(function: Function) -> bool:
    """Return whether a function makes a text for people."""
    returns_text = isinstance(function.returns, ast.Name) and function.returns.id == "str"
    return returns_text and any(isinstance(node, ast.JoinedStr) for node in ast.walk(function))


def _below(
    node: ast.AST, place: _Place, statement: ast.stmt, defaults: set[tuple[str, str]]
) -> Iterator[_Change]:
    """Yield the changes of a node and of all below it."""
    if isinstance(node, _UNREAD):
        return
    if isinstance(node, ast.stmt):
        statement = node
    found = [*_operators(node), *_constants(node), *_removals(node), *_dropped(node, defaults)]
    if place.field in ("test", "ifs") and not _is_negation(node):
        found.append(("condition", ast.UnaryOp(ast.Not(), node)))
    for operator, after in found:
        yield _Change(operator, node, ast.copy_location(after, node), place, statement)
    for child, within in _children(node):
        yield from _below(child, within, statement, defaults)


def _children(node: ast.AST) -> Iterator[tuple[ast.AST, _Place]]:
    """Yield the nodes right below one, without annotations and the like."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(value, ast.arguments):
            continue
        if isinstance(value, ast.AST):
            yield value, _Place(node, name, None)
        elif isinstance(value, list):
            for index, child in enumerate(value):
                if isinstance(child, ast.AST) and not _is_docstring(child):
                    yield child, _Place(node, name, index)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _operators(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield a node with another operator."""
    match node:
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                swapped = _SWAPS[type(operator)]()
                yield "comparison", _copy(node, ops=[*node.ops[:place], swapped, *node.ops[place + 1 :]])
        case ast.BinOp() | ast.AugAssign() if type(node.op) in _SWAPS and not _is_text(node):
            yield "arithmetic", _copy(node, op=_SWAPS[type(node.op)]())
        case ast.BoolOp():
            yield "and, or", _copy(node, op=_SWAPS[type(node.op)]())
        case ast.UnaryOp(op=ast.Not()):
            yield "condition", node.operand
        case ast.UnaryOp(op=ast.USub()):
            yield "arithmetic", node.operand


def _constants(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield a node with another value or name."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()) if name in _NAMES:
            yield "least, most", _copy(node, id=_NAMES[name])
        case ast.Constant(value=bool()):
            yield "constant", _copy(node, value=not node.value)
        case ast.Constant(value=int()):
            yield "constant", _copy(node, value=node.value + 1)


def _is_negation(test: ast.AST) -> bool:
    """Return whether other operators negate a test already."""
    single = isinstance(test, ast.Compare) and len(test.ops) == 1
    swaps = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
    return isinstance(test, ast.UnaryOp) or (single and isinstance(test.ops[0], swaps))


def _removals(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue() | ast.Break():
            yield "statement", ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement", ast.Pass()
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant | ast.JoinedStr):
            yield "return", ast.Return(ast.Constant(None))


def _dropped(call: ast.AST, defaults: set[tuple[str, str]]) -> Iterator[tuple[str, ast.AST]]:
    """Yield a call without a keyword argument that has a default."""
    if not isinstance(call, ast.Call):
        return
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    for place, keyword in enumerate(call.keywords):
        if (name, keyword.arg) in defaults:
            yield "argument", _copy(call, keywords=[*call.keywords[:place], *call.keywords[place + 1 :]])


def _is_text(node: ast.BinOp | ast.AugAssign) -> bool:
    parts = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
    return any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in parts
    )


def _copy(node: ast.AST, **changes: object) -> ast.AST:
    """Return a copy of a node with other children."""
    made = copy.copy(node)
    for name, value in changes.items():
        setattr(made, name, value)
    return made
