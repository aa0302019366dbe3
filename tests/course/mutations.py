"""Small changes to a function's code, as slips of the hand make them: `mutants` lists all that this file knows."""

from __future__ import annotations

import ast
import copy
import difflib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

OTHER = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitXor: ast.BitOr,
    ast.BitAnd: ast.BitOr,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.In: ast.NotIn,
}
OTHER_NAME = {"left": "right", "right": "left", "rank": "n", "n": "rank", "lower": "upper", "upper": "lower"}
OTHER_METHOD = {"sum": "mean", "mean": "sum", "amax": "amin", "isend": "irecv", "send": "recv", "recv": "send"}
DROPPABLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.For, ast.If, ast.Assert)


@dataclass(frozen=True)
class Mutant:
    """A changed function: what kind of change, the lines before and after it, and the whole code."""

    kind: str
    before: str
    after: str
    code: str


def mutants(function: ast.FunctionDef, seed: int | str) -> list[Mutant]:
    """All changes to a function, in an order drawn by seed in which the kinds take turns."""
    draw = random.Random(seed)
    old, by_kind, seen = ast.unparse(function), {kind: [] for kind in KINDS}, {ast.unparse(function)}
    for node in ast.walk(function):
        for kind, change in KINDS.items():
            for new in change(node):
                code = _code(function, node, new)
                if code not in seen:
                    seen.add(code)
                    by_kind[kind].append(Mutant(kind, *_difference(old, code), code))
    queues = list(by_kind.values())
    for queue in (queues, *queues):
        draw.shuffle(queue)
    return [queue[turn] for turn in range(max(map(len, queues))) for queue in queues if turn < len(queue)]


def _code(function: ast.FunctionDef, node: ast.AST, new: ast.AST) -> str:
    changed = copy.deepcopy(function, {id(node): new})  # a copy in which `new` stands for `node`
    return ast.unparse(ast.fix_missing_locations(changed))


def _difference(old: str, new: str) -> tuple[str, str]:
    """The first lines that differ, before and after."""
    before, after = old.splitlines(), new.splitlines()
    moves = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    _, first, last, new_first, new_last = next(move for move in moves if move[0] != "equal")
    return _line(before[first:last]), _line(after[new_first:new_last])


def _line(lines: list[str]) -> str:
    return "; ".join(line.strip() for line in lines)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """A copy of the node, with other fields."""
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _parsed(template: str, **parts: ast.AST) -> ast.expr:
    """The expression of a template, in which names stand for parts."""
    (statement,) = ast.parse(template).body
    assert isinstance(statement, ast.Expr)
    memo = {id(node): parts[node.id] for node in ast.walk(statement) if isinstance(node, ast.Name) and node.id in parts}
    return copy.deepcopy(statement.value, memo)


def operator(node: ast.AST) -> Iterator[ast.AST]:
    """`+` for `-`, `*` for `/`, `<` for `<=`."""
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in OTHER:
        yield _with(node, op=OTHER[type(node.op)]())
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER:
        yield _with(node, ops=[OTHER[type(node.ops[0])](), *node.ops[1:]])


def constant(node: ast.AST) -> Iterator[ast.AST]:
    """A number one too big or too small."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield ast.Constant(node.value + 1)
        yield ast.Constant(node.value - 1)


def term_dropped(node: ast.AST) -> Iterator[ast.AST]:
    """One side of an operation alone: `rank + step` becomes `rank`."""
    if isinstance(node, ast.BinOp):
        yield node.left


def statement_dropped(node: ast.AST) -> Iterator[ast.AST]:
    """A statement that is not there."""
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if isinstance(node, DROPPABLE) and not docstring:
        yield ast.Pass()


def unwrapped(node: ast.AST) -> Iterator[ast.AST]:
    """The body without its condition, or without its `with`."""
    if isinstance(node, (ast.If, ast.With)):
        yield ast.If(ast.Constant(True), node.body, [])


def arguments(node: ast.AST) -> Iterator[ast.AST]:
    """The first two arguments exchanged, or the last one left out."""
    if isinstance(node, ast.Call) and len(node.args) > 1:
        yield _with(node, args=[node.args[1], node.args[0], *node.args[2:]])
        yield _with(node, args=node.args[:-1])
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            yield _with(node, keywords=[other for other in node.keywords if other is not keyword])


def negated(node: ast.AST) -> Iterator[ast.AST]:
    """A condition negated."""
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))


def bound(node: ast.AST) -> Iterator[ast.AST]:
    """A loop that runs once more or once less."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        for template in ("last - 1", "last + 1"):
            yield _with(node, args=[*node.args[:-1], _parsed(template, last=node.args[-1])])


def name(node: ast.AST) -> Iterator[ast.AST]:
    """The left neighbour for the right one, the number of ranks for the rank; another method of the same kind."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in OTHER_NAME:
        yield ast.Name(OTHER_NAME[node.id], ast.Load())
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in OTHER_METHOD:
        way = {"dst": "src", "src": "dst"}
        keywords = [ast.keyword(way.get(k.arg or "", k.arg), k.value) for k in node.keywords]
        yield _with(node, func=_with(node.func, attr=OTHER_METHOD[node.func.attr]), keywords=keywords)


def reduction(node: ast.AST) -> Iterator[ast.AST]:
    """Another ReduceOp."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "all_reduce":
        others = [keyword for keyword in node.keywords if keyword.arg != "op"]
        for op in ("MAX", "MIN", "SUM") if len(others) < len(node.keywords) else ("MAX", "MIN"):
            yield _with(node, keywords=[*others, ast.keyword("op", _parsed(f"dist.ReduceOp.{op}"))])


def in_place(node: ast.AST) -> Iterator[ast.AST]:
    """Out of place what was in place, and in place what was a copy."""
    if isinstance(node, ast.AugAssign):
        target = ast.parse(ast.unparse(node.target), mode="eval").body
        yield ast.Assign([node.target], ast.BinOp(target, node.op, node.value))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        method = node.func.attr
        if method.endswith("_") and method != "copy_":
            yield _with(node, func=_with(node.func, attr=method[:-1]))
        if method in ("clone", "detach", "double"):
            yield node.func.value
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        target = node.value.func.value
        if node.value.func.attr == "copy_" and isinstance(target, (ast.Subscript, ast.Attribute)):
            yield ast.Assign([_with(target, ctx=ast.Store())], node.value.args[0])


def returned(node: ast.AST) -> Iterator[ast.AST]:
    """An argument returned, or nothing."""
    if isinstance(node, ast.Return):
        yield ast.Pass()
    if isinstance(node, ast.FunctionDef) and node.args.args and isinstance(node.body[-1], ast.Return):
        first = ast.Name(node.args.args[0].arg, ast.Load())
        yield _with(node, body=[*node.body[:-1], ast.Return(first)])


def sliced(node: ast.AST) -> Iterator[ast.AST]:
    """A slice that begins or ends elsewhere, or none."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        yield node.value
        for side in ("lower", "upper"):
            if getattr(node.slice, side) is not None:
                moved = _parsed("end + 1", end=getattr(node.slice, side))
                yield _with(node, slice=_with(node.slice, **{side: moved}))


def order(node: ast.AST) -> Iterator[ast.AST]:
    """A loop in the other direction; what was turned or sorted left as it was; values that have changed places."""
    if isinstance(node, ast.For):
        yield _with(node, iter=_parsed("reversed(list(items))", items=node.iter))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("reversed", "sorted"):
        yield node.args[0]
    if isinstance(node, ast.Dict) and len(node.values) > 1:
        for i in range(len(node.values) - 1):
            one, other = node.values[i : i + 2]
            yield _with(node, values=[*node.values[:i], other, one, *node.values[i + 2 :]])
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
        yield _with(node, value=_with(node.value, elts=node.value.elts[::-1]))


CHANGES: tuple[Callable[[ast.AST], Iterator[ast.AST]], ...] = (
    *(operator, constant, term_dropped, statement_dropped, unwrapped, arguments, negated, bound),
    *(name, reduction, in_place, returned, sliced, order),
)
KINDS = {change.__name__: change for change in CHANGES}
