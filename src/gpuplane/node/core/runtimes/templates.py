"""Go templates (text/template) of containerd's file, as k3s and RKE2 render them at each start.

What is written into a template has to be TOML after it is rendered, whatever the node's values are. So a template is
never judged by its own text: `renderings` has the texts that it can become, with every condition met, with none met,
and with each one decided otherwise; a loop has one turn. What an action prints is not known: a number stands for it.

The template "base" is the distribution's own. It begins with keys and ends within one of its tables, and of those that
it has two matter here, because TOML allows a table only once (k3s, pkg/agent/templates).

`masked` has the same length as the template, with everything hidden that is no TOML: it shows where things are.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from gpuplane.base.strict import InvalidInput

BASE = """# the template "base"
[plugins."io.containerd.grpc.v1.cri"]
[plugins."io.containerd.cri.v1.runtime"]
["the last table of base"]
"""
MOST_BLOCKS = 200
"""Conditions and loops in a template. k3s' own has 40."""
DEEPEST_BLOCK = 50

ACTION = re.compile(
    r"""\{\{(?P<left>-(?=\s))?\s*+
    (?P<code>/\*.*?\*/|(?:"(?:[^"\\\n]|\\.)*+"|`[^`]*+`|'(?:[^'\\\n]|\\.)*+'|(?!\s-\}\}|\}\})[^"`'])*+)
    (?P<right>\s-)?\}\}""",
    re.VERBOSE | re.DOTALL,
)
"""An action or a comment. A dash beside a brace trims the white space on that side of the action."""
INDEX = re.compile(r"range\s+(\$\w+)\s*,")
PRINTS_NOTHING = re.compile(r"/\*|break$|continue$|\$\w*\s*(?:,\s*\$\w+\s*)?:?=")
NAME = re.compile(r"\w+\s*[\"`]([^\"`]*)[\"`]")


class Action(NamedTuple):
    """An action in a template. `left`, `right`: whether the white space on that side is trimmed."""

    number: int
    start: int
    end: int
    code: str
    left: bool
    right: bool

    @property
    def word(self) -> str:
        """The word that it begins with, such as "if"; "" if it begins with no word."""
        return (re.match(r"\w*", self.code) or [""])[0]

    @property
    def name(self) -> str:
        """The name of the template that it includes or defines; "" for other actions."""
        found = NAME.match(self.code) if self.word in ("template", "block", "define") else None
        return found[1] if found else ""


class Print(NamedTuple):
    """What an action prints. `number`: the action's."""

    number: int


class Call(NamedTuple):
    """Another template, in this place."""

    name: str


class Block(NamedTuple):
    """A condition or a loop: what stands there in each case, in the last one nothing if there is no else.

    `number`: of the action that opens it.
    """

    number: int
    branches: "list[list[Node]]"


Node = str | Print | Call | Block


def is_template(path: str) -> bool:
    """Whether a file is rendered before containerd reads it."""
    return path.endswith(".tmpl")


def extends_base(text: str, path: str) -> bool:
    """Whether a file is a template that includes the distribution's own. Raises InvalidInput."""
    return is_template(path) and any(each.word != "define" and each.name == "base" for each in _actions(text, path))


def config_version_of_base(path: str) -> int:
    """The version of the configuration in the distribution's own template, which the template at a path extends."""
    return 3 if "-v3." in posixpath.basename(path) else 2


def renderings(text: str, path: str, base: str) -> Iterator[str]:
    """The texts that a template can become; the first one with every condition met. Raises InvalidInput."""
    template = _Parser(text, path)
    yield template.render(base, {})
    yield template.render(base, {each.number: len(each.branches) - 1 for each in template.blocks})
    for block in template.blocks:
        for branch in range(1, len(block.branches)):
            yield template.render(base, {block.number: branch})


def masked(text: str, path: str) -> str:
    """The text with every action masked: one that has lines of its own as a comment, others as a number."""
    parts: list[str] = []
    end = 0
    for action in _actions(text, path):
        code = text[action.start : action.end]
        before = text[text.rfind("\n", 0, action.start) + 1 : action.start]
        if not before.strip() and re.compile(r"[ \t\r]*(?:\n|$)").match(text, action.end):
            code = re.sub(r"[^\r\n]+", lambda line: "#" + "x" * (len(line[0]) - 1), code)
        else:
            code = "1" * len(code)
        parts += [text[end : action.start], code]
        end = action.end
    return "".join([*parts, text[end:]])


def _actions(text: str, path: str) -> Iterator[Action]:
    """The actions of a template, in their order. Raises InvalidInput if one has no end."""
    at = text.find("{{")
    for number in count():
        if at < 0:
            return
        found = ACTION.match(text, at)
        if found is None:
            raise _invalid(text, path, at, "the action that begins here has no end")
        yield Action(number, at, found.end(), found["code"].strip(), bool(found["left"]), bool(found["right"]))
        at = text.find("{{", found.end())


def _invalid(text: str, path: str, at: int, problem: str) -> InvalidInput:
    line = text.count("\n", 0, at) + 1
    return InvalidInput([f"{path}:{line}: is not a Go template that gpuplane can judge: {problem}"])


class _Parser:
    """A template as a tree. `blocks`: all of them; `defined`: the templates that it defines. Raises InvalidInput."""

    def __init__(self, text: str, path: str) -> None:
        self.text, self.path = text, path
        self.blocks: list[Block] = []
        self.defined: dict[str, list[Node]] = {}
        self.first_in_lists: set[str] = set()  # conditions that are false the first time in a loop: "if $index"
        self.tokens = self._tokens()
        self.nodes, unopened = self._nodes_until_else_or_end(0)
        if unopened is not None:
            raise self._invalid(unopened, f"no block is open that {unopened.word} could end")

    def render(self, base: str, decided: Mapping[int, int]) -> str:
        """The text with these branches of blocks (number → branch), and the first branch of all others."""
        text = "".join(self._written(self.nodes, base, decided, 0))
        lines_of_their_own = re.compile(r"(?m)^[ \t]*(?:\ue000\d+\ue001[ \t]*)+$")
        return re.sub(r"[\ue000\ue001]", "", lines_of_their_own.sub("", text))

    def _written(self, nodes: Sequence[Node], base: str, decided: Mapping[int, int], depth: int) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, str):
                yield node
            elif isinstance(node, Print):
                yield f"\ue000{1_000_000 + node.number}\ue001"
            elif isinstance(node, Block):
                yield from self._written(node.branches[decided.get(node.number, 0)], base, decided, depth)
            elif node.name == "base":
                yield base
            elif depth == 0:  # a template that another one includes prints nothing here
                yield from self._written(self.defined.get(node.name, ()), base, decided, 1)

    def _tokens(self) -> Iterator[str | Action]:
        """Texts and actions in turn; the texts are trimmed as the actions beside them say."""
        end, trim = 0, False
        for action in _actions(self.text, self.path):
            between = self.text[end : action.start]
            between = between.lstrip() if trim else between
            yield between.rstrip() if action.left else between
            yield action
            end, trim = action.end, action.right
        yield self.text[end:].lstrip() if trim else self.text[end:]

    def _nodes_until_else_or_end(self, depth: int) -> tuple[list[Node], Action | None]:
        nodes: list[Node] = []
        for token in self.tokens:
            if isinstance(token, str):
                nodes.append(token)
            elif token.word in ("else", "end"):
                return nodes, token
            else:
                nodes += self._nodes_of(token, depth)
        return nodes, None

    def _nodes_of(self, action: Action, depth: int) -> list[Node]:
        if action.word in ("if", "with", "range"):
            branches = self._branches(action, depth)
            if action.code in self.first_in_lists:
                return branches[-1]
            self.blocks.append(Block(action.number, branches))
            return [self.blocks[-1]]
        if action.word in ("define", "block"):
            self.defined[action.name] = self._branches(action, depth)[0]
        if action.word in ("template", "block"):
            return [Call(action.name)]
        return [] if action.word == "define" or PRINTS_NOTHING.match(action.code) else [Print(action.number)]

    def _branches(self, opening: Action, depth: int) -> list[list[Node]]:
        """What stands in each case of a block, to its end. The last case is empty if there is no else."""
        if depth >= DEEPEST_BLOCK or len(self.blocks) >= MOST_BLOCKS:
            raise self._invalid(opening, f"it has more than {MOST_BLOCKS} blocks, or {DEEPEST_BLOCK} in each other")
        if found := INDEX.match(opening.code):
            self.first_in_lists.add(f"if {found[1]}")
        branches: list[list[Node]] = []
        begin, end = opening, opening
        while end.word != "end":
            nodes, closing = self._nodes_until_else_or_end(depth + 1)
            if closing is None:
                raise self._invalid(opening, f"{opening.word} has no end")
            branches.append(nodes)
            begin, end = end, closing
        return branches if begin.code == "else" else [*branches, []]

    def _invalid(self, action: Action, problem: str) -> InvalidInput:
        return _invalid(self.text, self.path, action.start, problem)
