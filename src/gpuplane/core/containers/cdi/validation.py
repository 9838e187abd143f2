"""Validates CDI specifications, in two degrees.

`refusal_problems` are those for which container runtimes refuse the whole file (`rules`). `spec_problems` are these and
those that let a container fail later (`portability`). A specification that we write should have none of them.
"""

from collections.abc import Callable, Iterable

from gpuplane.core import strict
from gpuplane.core.containers.cdi.leniency import read_leniently
from gpuplane.core.containers.cdi.portability import portability_problems
from gpuplane.core.containers.cdi.rules import Problems, rule_problems
from gpuplane.core.strict import DocumentPath, format_path
from gpuplane.core.text import clip
from gpuplane.model.cdi import Spec


def parse_spec(
    data: bytes, file: str, problems: Callable[[Spec], Iterable[tuple[DocumentPath, str]]] | None = None
) -> Spec:
    """The specification in a file's bytes, YAML or JSON. Raises strict.InvalidInput: every mistake with file and line.

    `problems`: what counts as a mistake; None for `refusal_problems`. It is read as leniently as the library reads it
    (`leniency`), except for keys: their case has to be right.
    """
    return strict.load_with_lines(
        data, Spec, file, problems or refusal_problems, lambda root: read_leniently(root, Spec)
    )[0]


def refusal_problems(spec: Spec) -> Problems:
    """The mistakes for which container runtimes refuse the file."""
    yield from _with_location(rule_problems(spec))


def spec_problems(spec: Spec) -> Problems:
    """All mistakes."""
    yield from refusal_problems(spec)
    yield from _with_location(portability_problems(spec))


def _with_location(wrong: Problems) -> Problems:
    for path, text in wrong:
        yield path, f"{clip(format_path(path))}: {text}"
