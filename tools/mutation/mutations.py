"""The mutations of a source file, each of one expression or statement. Pure.

In `core/` and `codec/` all conditions, arithmetic, constants and statements with an effect; in
`storage/` only calls that write, sync, cut, rename or remove, wherever they stand. Assertions,
annotations, texts, log lines and the counts of how often a rule was needed are left alone: a test
need not notice a change of them.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

_COMPARISONS: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.LtE(), ast.LtE: ast.Lt(), ast.Gt: ast.GtE(), ast.GtE: ast.Gt(),
    ast.Eq: ast.NotEq(), ast.NotEq: ast.Eq(), ast.Is: ast.IsNot(), ast.IsNot: ast.Is(),
    ast.In: ast.NotIn(), ast.NotIn: ast.In(),
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.Add(), ast.FloorDiv: ast.Mult(),
}  # fmt: skip
_SWAPPED_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOGGERS = {"_log"}
_SKIPPED = (ast.Assert, ast.Import, ast.ImportFrom, ast.Raise, ast.JoinedStr, ast.Delete)
# The first word of what `storage/` calls to change a disk: of a system call, a method of a path or
# file, and a function of its own (`write`, `_write_over`, `write_file_atomically`).
_DISK_VERBS = frozenset({
    "cut", "discard", "execute", "fallocate", "fdatasync", "flush", "fsync", "ftruncate",
    "mkdir", "pwrite", "pwritev", "remove", "rename", "replace", "reserve", "rmdir", "rmtree",
    "roll", "save", "spill", "sync", "syncfs", "touch", "truncate", "unlink", "write",
})  # fmt: skip
# Functions that change a disk though their first word says nothing of it.
_DISK_NAMES = frozenset({
    "_make_end_clean", "_make_room", "_make_spare", "_mark", "_move_back", "_put", "_reset",
    "_set_aside", "_set_retired_aside", "_with_fd", "add_journal_file", "add_segments",
    "begin_round", "bury", "create", "fill", "finish_cut", "keep_journal_files", "make_directory",
    "record_loss", "set_aside", "trim_tail", "unmark", "with_room",
})  # fmt: skip
# Functions with such a word that change no disk.
_PURE_NAMES = frozenset({
    "_replace", "cut_at", "cut_checkpoint", "cut_columns", "cut_epochs", "remove_reader",
    "remove_waiter",
})  # fmt: skip
# Where the result of such a call is used it becomes this, else None; pwritev(2) has its own.
_RESULTS = {"_make_room": "False", "_remove_rubbish": "False", "syncfs": "0"}


class Mutation(NamedTuple):
    """Replace bytes `[start, end)` of the file by `text`."""

    path: str
    line: int
    start: int
    end: int
    before: str
    text: str
    line_text: str

    def apply(self, source: bytes) -> bytes:
        """The mutated file."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    @property
    def name(self) -> str:
        """Without its line, which moves; others of the file may have the same."""
        before = " ".join(self.before.split())
        return f"{self.path}: {before}  ->  {self.text}"

    @property
    def name_with_line(self) -> str:
        """With the line's text, in which there is seldom another of the name."""
        return f"{self.name}  in  {self.line_text}"

    def __str__(self) -> str:
        return self.name.replace(":", f":{self.line}:", 1)


def mutations_of(path: str, source: bytes) -> list[Mutation]:
    """All of them, in the order of the file."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(source)
    only_disk = "/storage/" in path
    if "/storage/inspection/" in path:  # it reads what others wrote
        return []
    changes = list(_changes(tree, only_disk=only_disk))
    if only_disk:
        changes += _of_disk_calls(tree)
    mutations = []
    for node, text in changes:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = source[start:end].decode()
        line_text = source[starts[node.lineno - 1] : starts[node.lineno]].decode().strip()
        mutations.append(Mutation(path, node.lineno, start, end, before, text, line_text))
    return sorted(mutations, key=lambda mutation: (mutation.start, mutation.end, mutation.text))


def _changes(node: ast.AST, *, only_disk: bool) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Each node of this tree that may be replaced, and by what."""
    for child in _children(node):
        if isinstance(child, _SKIPPED) or _only_notes(child):
            continue
        if isinstance(child, ast.stmt):
            if not only_disk or _touches_disk(child):
                yield from _of_statement(child)
        elif isinstance(child, ast.expr) and not only_disk:
            yield from ((child, ast.unparse(other)) for other in _of_expression(child))
        inner_only_disk = only_disk and not (
            isinstance(child, ast.Expr | ast.Assign | ast.Return) and _touches_disk(child)
        )
        yield from _changes(child, only_disk=inner_only_disk)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Its children but annotations, decorators, docstrings and class-level slots."""
    skipped = {"annotation", "returns", "decorator_list", "type_params", "bases", "keywords"}
    if isinstance(node, ast.Call):
        skipped = set()
    for name, value in ast.iter_fields(node):
        if name in skipped:
            continue
        for child in value if isinstance(value, list) else [value]:
            is_docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            is_alias = isinstance(node, ast.Module | ast.ClassDef) and isinstance(child, ast.Assign)
            if isinstance(child, ast.AST) and not is_docstring and not is_alias:
                yield child


def _of_statement(node: ast.stmt) -> Iterator[tuple[ast.stmt, str]]:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
            return
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign():
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case ast.Continue() | ast.Break():
            yield node, "pass"


def _of_expression(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield ast.Compare(left, [_COMPARISONS[type(op)]], [right])
        case ast.BoolOp(op=ast.And(), values=values):
            yield ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(op=ast.Or(), values=values):
            yield ast.BoolOp(ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            yield ast.BinOp(left, _ARITHMETIC[type(op)], right)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            if name in _SWAPPED_CALLS:
                yield ast.Call(ast.Name(_SWAPPED_CALLS[name]), args, keywords)
        case ast.Call(func=ast.Attribute(attr="write") as func, args=args, keywords=[]):
            yield ast.Call(func, args, [ast.keyword("is_durable", ast.Constant(value=False))])


def _only_notes(node: ast.AST) -> bool:
    """It is a log line, or counts a rule: `self._rules["follower.cut"] += 1`."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in _LOGGERS
        case ast.AugAssign(target=ast.Subscript(value=ast.Attribute(attr="rules" | "_rules"))):
            return True
    return False


def _touches_disk(node: ast.stmt) -> bool:
    """It has a call that changes the disk, and nothing else that is a statement."""
    match node:
        case (
            ast.Expr(value=value) | ast.Assign(value=value) | ast.Return(value=ast.expr() as value)
        ):
            return any(_is_disk_call(call) for call in ast.walk(value))
    return False


def _of_disk_calls(tree: ast.Module) -> Iterator[tuple[ast.expr, str]]:
    """Each call that changes the disk within something else, and a value as if it had."""
    awaits = {node.value: node for node in ast.walk(tree) if isinstance(node, ast.Await)}
    statements = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and _is_disk_call(call):
            whole = awaits.get(call, call)
            text = _result_of(call)
            if whole not in statements and text not in {None, ast.unparse(call)}:
                yield whole, text


def _result_of(call: ast.Call) -> str | None:
    """None: only the whole statement can go."""
    match _name(call):
        case "pwritev":
            return f"sum(map(len, {ast.unparse(call.args[1])}))"
        case "create":  # what it returns is needed
            kept = [keyword for keyword in call.keywords if keyword.arg != "is_durable"]
            not_durable = ast.keyword("is_durable", ast.Constant(value=False))
            return ast.unparse(ast.Call(call.func, call.args, [*kept, not_durable]))
        case "cut":  # of a value it returns another
            return None
        case name:
            return _RESULTS.get(name, "None")


def _is_disk_call(node: ast.AST) -> bool:
    match node:
        case ast.Call(
            func=ast.Name(id="replace") | ast.Attribute(value=ast.Attribute(attr="structs"))
        ):
            return False
    name = _name(node)
    verb = name.lstrip("_").partition("_")[0]
    return name in _DISK_NAMES or (verb in _DISK_VERBS and name not in _PURE_NAMES)


def _name(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name
    return ""
