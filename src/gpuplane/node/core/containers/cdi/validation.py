"""Validates CDI specifications, in two degrees.

`runtime_refusal_problems` are those for which container runtimes refuse the whole file (`rules`). `all_spec_problems`
are these and those that let a container fail later (`portability`). A specification that we write should have none of
them.
"""

from collections.abc import Callable, Iterable

from gpuplane.base import strict
from gpuplane.base.strict import DocumentPath, format_path
from gpuplane.base.text import clip
from gpuplane.node.core.containers.cdi.leniency import normalize_like_go_yaml
from gpuplane.node.core.containers.cdi.portability import runtime_compatibility_problems
from gpuplane.node.core.containers.cdi.rules import ProblemsByPath, cdi_library_rule_problems
from gpuplane.node.model.cdi import Spec


def parse_spec(
    data: bytes, file: str, problems: Callable[[Spec], Iterable[tuple[DocumentPath, str]]] | None = None
) -> Spec:
    """The specification in a file's bytes, YAML or JSON. Raises strict.InvalidInput: every mistake with file and line.

    `problems`: what counts as a mistake; None for `runtime_refusal_problems`. It is read as leniently as the library
    reads it (`leniency`), except for keys: their case has to be right.
    """
    return strict.load_with_lines(
        data, Spec, file, problems or runtime_refusal_problems, lambda root: normalize_like_go_yaml(root, Spec)
    )[0]


def runtime_refusal_problems(spec: Spec) -> ProblemsByPath:
    """The mistakes for which container runtimes refuse the file."""
    yield from _with_path_in_text(cdi_library_rule_problems(spec))


def all_spec_problems(spec: Spec) -> ProblemsByPath:
    """All mistakes."""
    yield from runtime_refusal_problems(spec)
    yield from _with_path_in_text(runtime_compatibility_problems(spec))


def _with_path_in_text(problems: ProblemsByPath) -> ProblemsByPath:
    for path, text in problems:
        yield path, f"{clip(format_path(path))}: {text}"
