"""Is a CDI specification good? Two answers, because they are asked for two reasons.

`refused` is what container runtimes refuse (`rules`): a file with such a mistake counts for nothing, all of it. `check`
adds what they stumble over later (`pitfalls`). Whoever writes a specification wants to pass `check`.
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
    """The specification in a file's bytes, YAML or JSON. Raises strict.Invalid: every mistake with file and line.

    `rules` are those of `refused` where nothing else is said. It is read as the library reads it, see `asread`, but for
    keys: they have to be written as they are.
    """
    return strict.load_with_lines(
        data, Spec, file, problems or refusal_problems, lambda root: read_leniently(root, Spec)
    )[0]


def refusal_problems(spec: Spec) -> Problems:
    """What container runtimes refuse."""
    yield from _with_location(rule_problems(spec))


def spec_problems(spec: Spec) -> Problems:
    """All that is wrong."""
    yield from refusal_problems(spec)
    yield from _with_location(portability_problems(spec))


def _with_location(wrong: Problems) -> Problems:
    for path, text in wrong:
        yield path, f"{clip(format_path(path))}: {text}"
