"""Is a CDI specification good? Two answers, because they are asked for two reasons.

`refused` is what container runtimes refuse (`rules`): a file with such a mistake counts for nothing, all of it. `check`
adds what they stumble over later (`pitfalls`). Whoever writes a specification wants to pass `check`.
"""

from collections.abc import Callable, Iterable

from gpuplane.core import strict
from gpuplane.core.containers.cdi.asread import as_read
from gpuplane.core.containers.cdi.pitfalls import pitfalls
from gpuplane.core.containers.cdi.rules import Wrong, broken
from gpuplane.core.strict import DocumentPath, format_path
from gpuplane.core.text import clip
from gpuplane.model.cdi import Spec


def read(data: bytes, file: str, rules: Callable[[Spec], Iterable[tuple[DocumentPath, str]]] | None = None) -> Spec:
    """The specification in a file's bytes, YAML or JSON. Raises strict.Invalid: every mistake with file and line.

    `rules` are those of `refused` where nothing else is said. It is read as the library reads it, see `asread`, but for
    keys: they have to be written as they are.
    """
    return strict.load_with_lines(data, Spec, file, rules or refused, lambda root: as_read(root, Spec))[0]


def refused(spec: Spec) -> Wrong:
    """What container runtimes refuse."""
    yield from _told(broken(spec))


def check(spec: Spec) -> Wrong:
    """All that is wrong."""
    yield from refused(spec)
    yield from _told(pitfalls(spec))


def _told(wrong: Wrong) -> Wrong:
    for path, text in wrong:
        yield path, f"{clip(format_path(path))}: {text}"
