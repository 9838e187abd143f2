"""Finds where a program compares texts for people (`gpuplane.base.text.Text`).

mypy holds most of it: to it a Text is no `str`, so nothing splits, sorts or searches one. It accepts that a Text is
compared by `==`, is a key, or is part of what is compared. So this reads the types that mypy finds for expressions.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from mypy import build, nodes
from mypy.main import process_options
from mypy.patterns import AsPattern, ClassPattern, Pattern
from mypy.types import CallableType, Instance, TupleType, Type, TypeType, UnionType, get_proper_type

TEXT = "gpuplane.base.text.Text"

HARMLESS = {"__format__", "__len__", "isprintable"}
"""Attributes of a text that may be used."""

COMPARING = {"sorted", "min", "max", "groupby", "set", "frozenset", "Counter", "fromkeys"}
"""Functions that compare what they are given, or what their `key` returns."""

COMPARING_METHODS = {"index", "count", "remove", "sort"}
"""Methods of a list or tuple that compare its items."""

LEAKING = {"str", "repr", "ascii", "hash", "cast", "isinstance"}
"""Functions that make of a text something that may be compared."""

UNREAD = ("PIL", "anyio", "httpcore2", "httpx2", "lightkube", "markdown_it", "matplotlib", "numpy", "rich")
"""Packages of others that know no texts of ours. Reading them takes longer than reading the program."""

UNFOLLOWED = {"follow_imports": "skip", "follow_imports_for_stubs": True}

KEYED = {
    "builtins.dict",
    "builtins.set",
    "builtins.frozenset",
    "typing.Mapping",
    "typing.MutableMapping",
    "typing.AbstractSet",
    "typing.MutableSet",
    "typing.KeysView",
    "collections.Counter",
    "collections.defaultdict",
    "itertools.groupby",
}
"""Types that compare their first argument."""


class Comparison(NamedTuple):
    """Where a text is compared, and how."""

    module: str
    function: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} ({self.function or 'module'}): {self.what}"


def comparisons(paths: Iterable[Path], packages: str, config: Path) -> list[Comparison]:
    """Each comparison in the modules below `packages`. What mypy finds by itself is `make lint`'s."""
    command = ["--config-file", str(config), "--cache-dir", os.devnull, *map(str, paths)]
    sources, options = process_options(command)
    options.export_types = options.preserve_asts = True
    options.incremental = False
    for name in UNREAD:
        options.per_module_options |= dict.fromkeys((name, f"{name}.*"), UNFOLLOWED)
    options.build_per_module_cache()
    result = build.build(sources, options)
    found: list[Comparison] = []
    for name, tree in result.files.items():
        if name == packages or name.startswith(f"{packages}."):
            finder = _Finder(name, result.types)
            finder.walk(tree)
            found += finder.found
    return sorted(set(found))


def _is_text(kind: Type | None) -> bool:
    proper = get_proper_type(kind)
    if isinstance(proper, UnionType):
        return any(map(_is_text, proper.items))
    return isinstance(proper, Instance) and proper.type.fullname == TEXT


def _has_text(kind: Type | None) -> bool:
    """Whether it is a text, or a collection with texts in it. A value with a field that is a text is none."""
    proper = get_proper_type(kind)
    if isinstance(proper, UnionType):
        return any(map(_has_text, proper.items))
    if isinstance(proper, TupleType):
        return any(map(_has_text, proper.items))
    if isinstance(proper, TypeType):
        return False
    return isinstance(proper, Instance) and (proper.type.fullname == TEXT or any(map(_has_text, proper.args)))


def _has_text_key(kind: Type | None) -> bool:
    proper = get_proper_type(kind)
    if isinstance(proper, UnionType):
        return any(map(_has_text_key, proper.items))
    if not isinstance(proper, Instance) or not proper.args:
        return False
    return any(base.fullname in KEYED for base in proper.type.mro) and _has_text(proper.args[0])


def _gives_text(kind: Type | None) -> bool:
    """Whether it is a text, or gives texts when it is iterated: a mapping gives its keys."""
    proper = get_proper_type(kind)
    if isinstance(proper, Instance) and any(base.fullname == "typing.Mapping" for base in proper.type.mro):
        return _has_text_key(proper)
    return _has_text(proper)


def _returns_text(kind: Type | None) -> bool:
    proper = get_proper_type(kind)
    return isinstance(proper, CallableType) and _has_text(proper.ret_type)


class _Finder:
    def __init__(self, module: str, types: dict[nodes.Expression, Type]) -> None:
        self.module, self.types = module, types
        self.functions: list[str] = []
        self.seen: set[int] = set()  # by identity: a part may be reached in two ways
        self.found: list[Comparison] = []

    def report(self, at: nodes.Context, what: str) -> None:
        self.found.append(Comparison(self.module, ".".join(self.functions), at.line, what))

    def walk(self, o: nodes.Node) -> None:
        """Look at a part of a module, and at all that is in it. (mypy's own visitors are compiled: none can be derived
        from.)"""
        if id(o) in self.seen:
            return
        self.seen.add(id(o))
        if isinstance(o, nodes.FuncDef):
            self.functions.append(o.name)
        self.look(o)
        for child in _children(o):
            self.walk(child)
        if isinstance(o, nodes.FuncDef):
            self.functions.pop()

    def look(self, o: nodes.Node) -> None:
        match o:
            case nodes.SetExpr() | nodes.DictExpr() | nodes.SetComprehension() | nodes.DictionaryComprehension():
                self.keyed(o)
            case nodes.ComparisonExpr():
                self.comparison(o)
            case nodes.MemberExpr():
                self.member(o)
            case nodes.IndexExpr() if _is_text(self.types.get(o.base)):
                self.report(o, "a part of a text is taken")
            case nodes.CallExpr():
                self.call(o)
            case nodes.CastExpr() if _is_text(self.types.get(o.expr)):
                self.report(o, "cast makes a text comparable")
            case nodes.MatchStmt() if _has_text(self.types.get(o.subject)):
                self.report(o, "a text is matched")
            case ClassPattern():
                self.class_pattern(o)

    def keyed(self, o: nodes.Expression) -> None:
        if _has_text_key(self.types.get(o)) or any(_has_text(self.types.get(key)) for key in _keys(o)):
            self.report(o, "a text is a key")

    def comparison(self, o: nodes.ComparisonExpr) -> None:
        for operator, (left, right) in zip(o.operators, zip(o.operands, o.operands[1:], strict=False), strict=True):
            if operator not in ("is", "is not") and (self.compared(left) or self.searched(right, operator)):
                self.report(o, f"a text is compared by {operator}")

    def compared(self, operand: nodes.Expression) -> bool:
        return _has_text(self.types.get(operand)) or self.is_formatted(operand)

    def searched(self, operand: nodes.Expression, operator: str) -> bool:
        if operator in ("in", "not in"):
            return _gives_text(self.types.get(operand)) or self.is_formatted(operand)
        return self.compared(operand)

    def is_formatted(self, operand: nodes.Expression) -> bool:
        """Whether it is an f-string or a call of `str.format` or `str.join` with a text in it."""
        if not (isinstance(operand, nodes.CallExpr) and isinstance(operand.callee, nodes.MemberExpr)):
            return False
        parts = [part for each in operand.args for part in (each.items if isinstance(each, nodes.ListExpr) else [each])]
        formats = operand.callee.name in ("format", "join")
        return formats and any(_has_text(self.types.get(part)) or self.is_formatted(part) for part in parts)

    def member(self, o: nodes.MemberExpr) -> None:
        base = self.types.get(o.expr)
        if _is_text(base) and o.name not in HARMLESS:
            self.report(o, f"a text's {o.name} is used")
        if o.name in COMPARING_METHODS and _has_text(base):
            self.report(o, f"{o.name} compares texts")

    def call(self, o: nodes.CallExpr) -> None:
        callee = o.callee.analyzed if isinstance(o.callee, nodes.IndexExpr) and o.callee.analyzed else o.callee
        self.keyed(o)
        name = callee.name if isinstance(callee, nodes.NameExpr | nodes.MemberExpr) else ""
        kinds = [self.types.get(each) for each in o.args]
        items = [self.types.get(generator.left_expr) for each in o.args if (generator := _generator(each)) is not None]
        if name in LEAKING and any(map(_is_text, kinds)):
            self.report(o, f"{name} makes a text comparable")
        if name in COMPARING and any(_gives_text(kind) or _returns_text(kind) for kind in (*kinds, *items)):
            self.report(o, f"{name} compares texts")
        of_re = (
            isinstance(callee, nodes.MemberExpr)
            and isinstance(callee.expr, nodes.NameExpr)
            and callee.expr.name == "re"
        )
        if of_re and any(map(_is_text, kinds)):
            self.report(o, f"a text is matched by re.{name}")

    def class_pattern(self, o: ClassPattern) -> None:
        info = o.class_ref.node
        if isinstance(info, nodes.TypeInfo):
            for name, pattern in _fields(info, o):
                symbol = info.get(name)
                field = symbol.node if symbol is not None else None
                if isinstance(field, nodes.Var) and _has_text(field.type) and not _captures(pattern):
                    self.report(o, f"the text {name} is matched")


REFERENCES = {"node", "info", "analyzed", "original_def", "original_decorators", "var", "expanded"}
"""Attributes of a part of a module that lead elsewhere, or to the same once more."""


def _children(o: nodes.Node) -> Iterator[nodes.Node]:
    names = (name for kind in type(o).__mro__ for name in (*getattr(kind, "__mypyc_attrs__", ()), *_slots(kind)))
    for name in dict.fromkeys(names):
        if name not in REFERENCES:
            yield from _nodes(getattr(o, name, None))


def _slots(kind: type) -> tuple[str, ...]:
    return tuple(getattr(kind, "__slots__", ()))


def _generator(o: nodes.Expression) -> nodes.GeneratorExpr | None:
    match o:
        case nodes.GeneratorExpr():
            return o
        case nodes.ListComprehension(generator=generator):
            return generator
    return None


def _keys(o: nodes.Expression) -> Iterable[nodes.Expression]:
    """The expressions of the keys of a set or a dict, whatever type it is taken for."""
    match o:
        case nodes.SetExpr(items=items):
            return items
        case nodes.DictExpr(items=items):
            return [key for key, _ in items if key is not None]
        case nodes.SetComprehension(generator=generator):
            return [generator.left_expr]
        case nodes.DictionaryComprehension(key=key):
            return [key] if key is not None else []
    return ()


def _nodes(value: object) -> Iterator[nodes.Node]:
    if isinstance(value, nodes.Node) and not isinstance(value, nodes.TypeInfo | nodes.Var):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _nodes(each)


def _fields(info: nodes.TypeInfo, o: ClassPattern) -> Iterator[tuple[str, Pattern]]:
    yield from zip(o.keyword_keys, o.keyword_values, strict=True)
    match = info.get("__match_args__")
    kind = get_proper_type(match.type) if match is not None else None
    if isinstance(kind, TupleType):
        for item, pattern in zip(kind.items, o.positionals, strict=False):
            literal = get_proper_type(item)
            if isinstance(literal, Instance) and literal.last_known_value is not None:
                yield str(literal.last_known_value.value), pattern
            elif hasattr(literal, "value"):
                yield str(literal.value), pattern


def _captures(pattern: Pattern) -> bool:
    return isinstance(pattern, AsPattern) and pattern.pattern is None
