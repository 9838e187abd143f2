"""Docstrings speak of what is there: a field, a parameter or an error that was renamed is renamed in its docstring."""

import ast
import builtins
import functools
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import click

import gpuplane

SRC = Path(gpuplane.__file__).parent
MODULES = sorted(path for path in SRC.rglob("*.py") if not re.search(r"_pb2(_grpc)?\.py$", path.name))
DESCRIBED = re.compile(r"`\w+`(?:, `\w+`|,? and `\w+`)*:(?=\s)")
"""What is said of one field or parameter, or of several: "`since`, `until`: seconds"."""
RAISED = re.compile(r"\bRaises ([A-Z]\w+)")
OTHERS = frozenset({*dir(builtins), *dir(click), *dir(statistics)})
"""Errors of others that pass through."""

Documented = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def documented(tree: ast.Module) -> Iterator[Documented]:
    """Each class and function."""
    return (each for each in ast.walk(tree) if isinstance(each, Documented))


def own_names(node: Documented) -> set[str]:
    """Parameters of a function; fields, methods and attributes of a class."""
    if not isinstance(node, ast.ClassDef):
        return {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
    found = set[str]()
    for each in ast.walk(node):
        match each:
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Assign(targets=targets):
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


@functools.cache
def known_in_room(room: str) -> frozenset[str]:
    """What the modules of a room define or import: an error may pass through a function from deeper down."""
    found = set[str]()
    for path in (path for path in MODULES if path.relative_to(SRC).parts[0] == room):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.ClassDef(name=name):
                    found.add(name)
                case ast.ImportFrom(names=names):
                    found |= {each.asname or each.name for each in names}
    return frozenset(found)


def stale_names(source: str, errors: frozenset[str]) -> list[str]:
    """What the docstrings of a module name that does not exist. `errors`: those that it may promise."""
    found = list[str]()
    for node in documented(ast.parse(source)):
        text, own = ast.get_docstring(node) or "", own_names(node)
        where = f"line {node.lineno}, {node.name}"
        described = (name for part in DESCRIBED.findall(text) for name in re.findall(r"`(\w+)`", part))
        found += [f"{where}: no field or parameter {name}" for name in described if name not in own]
        found += [f"{where}: no {name}" for name in RAISED.findall(text) if name not in errors]
    return found


def test_names_in_docstrings_exist() -> None:
    """Fields and parameters are those of the class or function, and the room knows the errors."""
    found = [
        f"{path.relative_to(SRC)}: {problem}"
        for path in MODULES
        for problem in stale_names(path.read_text(), OTHERS | known_in_room(path.relative_to(SRC).parts[0]))
    ]
    assert found == []


def test_what_is_gone_is_found() -> None:
    """In a class, in a function, among several, and of an error."""
    source = '''
class Link:
    """`lanes`: how many."""
    nvlink_count: int

def follow(link, until):
    """`link`, `deadline`: what, and how long. Raises Away, or ValueError. Raises ValueError."""
'''
    assert stale_names(source, OTHERS) == [
        "line 2, Link: no field or parameter lanes",
        "line 6, follow: no field or parameter deadline",
        "line 6, follow: no Away",
    ]
