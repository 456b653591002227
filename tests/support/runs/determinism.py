"""What workflow code must not do, found in its source: clocks, randomness, I/O, and whatever depends on the order of a
set.

A run is replayed from its history by other processes, on other days. What it decides may depend on nothing but that
history: not on the time, not on the machine, and not on the order in which a set of strings is iterated, which is
another in each process.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

#: The modules that workflow code may import; of some, only these names.
MODULES: dict[str, frozenset[str] | None] = {
    "__future__": None,
    "asyncio": frozenset({"CancelledError", "Task", "create_task", "gather"}),
    "base64": None,
    "bisect": None,
    "collections": None,
    "collections.abc": None,
    "contextlib": None,
    "dataclasses": None,
    "datetime": frozenset({"timedelta"}),
    "enum": None,
    "functools": None,
    "heapq": None,
    "itertools": None,
    "hashlib": frozenset({"blake2b", "sha256"}),
    "json": None,
    "math": None,
    "operator": None,
    "posixpath": frozenset({"normpath", "join", "basename", "dirname"}),
    "re": None,
    "storage_node.model": None,
    "temporalio": None,
    "typing": None,
    "workflows": None,
    "zlib": None,
}
#: Built-in functions that reach out of the run, or return something else in each process.
BUILTINS = frozenset(
    {"open", "input", "print", "id", "hash", "exec", "eval", "compile", "breakpoint", "__import__", "vars", "globals"}
)
#: Functions whose result does not depend on the order of their input.
ORDER_BLIND = frozenset({"sorted", "set", "frozenset", "min", "max", "any", "all", "len", "sum", "bool", "Counter"})
#: Methods of sets that return sets.
SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})
_SETS = frozenset({"set", "frozenset", "Set", "AbstractSet", "MutableSet", "KeysView"})
#: Functions that take elements in the order in which they come.
ORDERED = frozenset(
    {"list", "tuple", "enumerate", "iter", "next", "map", "filter", "zip", "deque", "reversed", "dict", "chain"}
)
ORDERED_METHODS = frozenset({"join", "extend", "fromkeys", "from_iterable", "extendleft"})


#: What reads the clock of a class that only computes otherwise.
_DATES = frozenset({"datetime", "date"})
_CLOCKS = frozenset({"now", "today", "utcnow"})


@dataclass(frozen=True, order=True)
class Finding:
    """What is wrong, where: `function` is the innermost one, "" at module level."""

    line: int
    what: str
    function: str = ""


@dataclass
class Known:
    """Names that are annotated as sets somewhere: attributes, and functions that return one."""

    attributes: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)


def known_sets(trees: Iterable[ast.AST]) -> Known:
    """What is annotated as a set in these modules."""
    known = Known()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and _is_set_type(node.annotation):
                target = node.target
                if isinstance(target, ast.Attribute):
                    known.attributes.add(target.attr)
            elif isinstance(node, ast.ClassDef):
                fields = (each for each in node.body if isinstance(each, ast.AnnAssign))
                known.attributes |= {
                    each.target.id
                    for each in fields
                    if isinstance(each.target, ast.Name) and _is_set_type(each.annotation)
                }
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_set_type(node.returns):
                (known.attributes if _is_property(node) else known.functions).add(node.name)
    return known


def findings(source: str | ast.Module, known: Known | None = None) -> list[Finding]:
    """All that is wrong in a module."""
    tree = ast.parse(source) if isinstance(source, str) else source
    visitor = _Visitor(known if known is not None else known_sets([tree]))
    visitor.visit(tree)
    return sorted(set(visitor.found))


def _known(module: str) -> str | None:
    """The entry of MODULES that allows a module, its own or that of a package which holds it."""
    while module and module not in MODULES:
        module = module.rpartition(".")[0]
    return module or None


def _is_set_type(annotation: ast.expr | None) -> bool:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    if isinstance(annotation, ast.BinOp):
        return _is_set_type(annotation.left) or _is_set_type(annotation.right)
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    name = annotation.attr if isinstance(annotation, ast.Attribute) else getattr(annotation, "id", "")
    return name in _SETS


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(getattr(each, "id", "") in ("property", "cached_property") for each in node.decorator_list)


def _called(node: ast.AST) -> str:
    """The name of what is called, "" for anything but a name or an attribute."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


class _Visitor(ast.NodeVisitor):
    def __init__(self, known: Known) -> None:
        self._known = known
        self._functions: list[str] = []
        self._locals: list[set[str]] = [set()]
        self._modules: dict[str, str] = {}  # by local name the module
        self.found: list[Finding] = []

    def _add(self, node: ast.AST, what: str) -> None:
        self.found.append(Finding(getattr(node, "lineno", 0), what, self._functions[-1] if self._functions else ""))

    # --- modules and names

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            self._modules[(each.asname or each.name).split(".")[0]] = each.name.split(".")[0]
            if each.name.split(".")[0] not in MODULES:
                self._add(node, f"imports {each.name}")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        root = _known(module)
        if root is None:
            self._add(node, f"imports {module}")
            return
        allowed = MODULES[root]
        for each in node.names:
            if allowed is not None and each.name not in allowed:
                self._add(node, f"imports {module}.{each.name}")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in self._modules:
            module = self._modules[node.value.id]
            allowed = MODULES.get(module)
            if module not in MODULES or (allowed is not None and node.attr not in allowed):
                self._add(node, f"uses {module}.{node.attr}")
        if isinstance(node.value, ast.Name) and node.value.id in _DATES and node.attr in _CLOCKS:
            self._add(node, f"uses {node.value.id}.{node.attr}")
        if node.attr == "unsafe":
            self._add(node, "uses workflow.unsafe")
        self.generic_visit(node)

    # --- functions and what their names refer to

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for each in node.decorator_list:
            self.visit(each)
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        self._functions.append(node.name)
        self._locals.append(self._locals[-1] | {each.arg for each in given if _is_set_type(each.annotation)})
        self._locals[-1] -= {each.arg for each in given if not _is_set_type(each.annotation)}
        for statement in node.body:
            self.visit(statement)
        self._functions.pop()
        self._locals.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for name, value in pairs:
                if isinstance(name, ast.Name):
                    (self._locals[-1].add if self._is_set(value) else self._locals[-1].discard)(name.id)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        if isinstance(node.target, ast.Name) and self._functions:
            held = _is_set_type(node.annotation)
            (self._locals[-1].add if held else self._locals[-1].discard)(node.target.id)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.generic_visit(node)
        if self._is_set(node.value):
            self._locals[-1].add(node.target.id)

    def _is_set(self, node: ast.AST | None) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Name(id=name):
                return name in self._locals[-1]
            case ast.Attribute(attr=name):
                return name in self._known.attributes
            case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.BitXor() | ast.Sub(), right=right):
                keys = any(_called(each) in ("keys", "items") for each in (left, right))
                return keys or self._is_set(left) or self._is_set(right)
            case ast.IfExp(body=body, orelse=other):
                return self._is_set(body) or self._is_set(other)
            case ast.BoolOp(values=values):
                return any(self._is_set(each) for each in values)
            case ast.NamedExpr(value=value):
                return self._is_set(value)
            case ast.Call(func=ast.Name(id=name)):
                return name in ("set", "frozenset") or name in self._known.functions
            case ast.Call(func=ast.Attribute(value=value, attr=name)):
                return name in self._known.functions or (name in SET_METHODS and self._is_set(value))
        return False

    # --- what iterates

    def visit_For(self, node: ast.For) -> None:
        if self._is_set(node.iter):
            self._add(node, "iterates over a set")
        self.generic_visit(node)

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> None:
        if any(self._is_set(each.iter) for each in node.generators):
            self._add(node, "iterates over a set")
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._comprehension(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> None:
        if self._is_set(node.value):
            self._add(node, "iterates over a set")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _called(node)
        if isinstance(node.func, ast.Name) and name in BUILTINS:
            self._add(node, f"calls {name}")
        blind = name in ORDER_BLIND and not any(each.arg == "key" for each in node.keywords if name != "sorted")
        if name == "pop" and isinstance(node.func, ast.Attribute) and self._is_set(node.func.value):
            self._add(node, "takes any element of a set")
        for each in node.args:
            inner = each.value if isinstance(each, ast.Starred) else each
            taken = isinstance(each, ast.Starred) or name in ORDERED or name in ORDERED_METHODS
            if name in ("min", "max") and not blind:
                taken = True
            if taken and self._is_set(inner):
                self._add(node, "takes a set's elements in order")
        self.visit(node.func)
        for each in (*node.args, *(keyword.value for keyword in node.keywords)):
            if blind and isinstance(each, ast.GeneratorExp | ast.ListComp):
                self.generic_visit(each)  # the result is the same in any order
            else:
                self.visit(each)

    def visit_List(self, node: ast.List) -> None:
        self._starred(node)

    def visit_Tuple(self, node: ast.Tuple) -> None:
        self._starred(node)

    def _starred(self, node: ast.List | ast.Tuple) -> None:
        if any(isinstance(each, ast.Starred) and self._is_set(each.value) for each in node.elts):
            self._add(node, "takes a set's elements in order")
        self.generic_visit(node)


def queries(source: str | ast.Module) -> Iterator[str]:
    """The functions that serve queries: no history records their results, and none is replayed."""
    for node in ast.walk(ast.parse(source) if isinstance(source, str) else source):
        if isinstance(node, ast.FunctionDef):
            for each in node.decorator_list:
                decorator = each.func if isinstance(each, ast.Call) else each
                if isinstance(decorator, ast.Attribute) and decorator.attr == "query":
                    yield node.name
