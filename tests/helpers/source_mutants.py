"""Mutants of a source file: small changes of operators, numbers, conditions and statements."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass, field
from typing import Final

COMPARISONS: Final = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
ARITHMETIC: Final = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
UNARY: Final = {ast.Not: "not", ast.USub: "-", ast.Invert: "~"}
SWAPPED_NAMES: Final = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "any": "all",
    "all": "any",
}


@dataclass(frozen=True)
class Mutant:
    """One changed place of a source file."""

    line: int
    old: str  # the line before
    new: str  # the line after
    text: str = field(repr=False)  # the whole file after


def mutants_of(source: str) -> list[Mutant]:
    """All mutants of a source file, in the order of their places."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    edits = sorted(set(_Edits(source, starts).found))
    lines = source.splitlines()
    mutants = []
    for start, end, replacement in edits:
        text = source[:start] + replacement + source[end:]
        line = source.count("\n", 0, start)
        mutants.append(Mutant(line + 1, lines[line].strip(), text.splitlines()[line].strip(), text))
    return mutants


class _Edits(ast.NodeVisitor):
    """Collects (start, end, replacement) of every mutant; messages, annotations and defaults of settings stay."""

    def __init__(self, source: str, starts: list[int]) -> None:
        self.source, self.starts = source, starts
        self.found: list[tuple[int, int, str]] = []
        self.visit(ast.parse(source))

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            self._replace_between(left, right, *COMPARISONS[type(operator)])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in ARITHMETIC and not _is_text(node.left):
            self._replace_between(node.left, node.right, *ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in ARITHMETIC:
            old, new = ARITHMETIC[type(node.op)]
            self._replace_between(node.target, node.value, f"{old}=", f"{new}=")
        self._replace_node(node, "pass")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        self._replace_between(node.values[0], node.values[1], old, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if type(node.op) in UNARY:
            start, end = self._span(node)
            self.found.append((start, end, self.source[start:end].removeprefix(UNARY[type(node.op)]).lstrip()))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace_node(node, str(not node.value))
        elif isinstance(node.value, int):
            self._replace_node(node, str(node.value + 1))
        elif isinstance(node.value, float):
            self._replace_node(node, repr(2 * node.value or 1.0))

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func
        if isinstance(name, ast.Name) and name.id in SWAPPED_NAMES:
            self._replace_node(name, SWAPPED_NAMES[name.id])
        if isinstance(name, ast.Attribute) and name.attr in SWAPPED_NAMES:
            _, end = self._span(name)
            self.found.append((end - len(name.attr), end, SWAPPED_NAMES[name.attr]))
        if not ast.unparse(name).endswith("warn"):
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._replace_node(node, "pass")
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._replace_node(node, "pass")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
            start, end = self._span(node.test)
            self.found.append((start, end, f"not {self.source[start:end]}"))
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace_node(node, "break")

    def visit_Break(self, node: ast.Break) -> None:
        self._replace_node(node, "pass")

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        is_settings = node.name.endswith("Settings")
        for child in node.body:
            if not (is_settings and isinstance(child, ast.AnnAssign)):
                self.visit(child)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for child in (*node.args.defaults, *node.args.kw_defaults, *node.body):
            if child is not None:
                self.visit(child)

    def visit_Raise(self, node: ast.Raise) -> None:
        """An error's message is not behaviour that these mutants are about."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Messages."""

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Start and end of a node in the source; columns of `ast` count bytes."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        start, end = self.starts[line - 1 : line + 1]
        return start + len(self.source[start:end].encode()[:column].decode())

    def _replace_node(self, node: ast.expr | ast.stmt, new: str) -> None:
        self.found.append((*self._span(node), new))

    def _replace_between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        start, end = self._span(left)[1], self._span(right)[0]
        at = self.source.index(old, start, end)
        self.found.append((at, at + len(old), new))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def sample(mutants: list[Mutant], number: int, seed: int) -> list[Mutant]:
    """So many mutants, drawn by a hash of the changed line, in the order of their places."""

    def score(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed} {mutant.old} {mutant.new}".encode()).digest()

    return sorted(sorted(mutants, key=score)[:number], key=lambda mutant: mutant.line)


def mutant_by_hand(source: str, old: str, new: str) -> Mutant:
    """One given replacement; the text must occur exactly once."""
    if source.count(old) != 1:
        raise ValueError(f"{old!r} occurs {source.count(old)} times, not once.")
    line = source.count("\n", 0, source.index(old))
    text = source.replace(old, new)
    return Mutant(line + 1, source.splitlines()[line].strip(), text.splitlines()[line].strip(), text)
