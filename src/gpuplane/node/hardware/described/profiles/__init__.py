"""Machine files of real servers, by name: what `--machine dgx-a100` and the sandbox describe a node with."""

import difflib
from pathlib import Path

PROFILES_FOLDER = Path(__file__).parent


class UnknownMachine(LookupError):
    """No profile of this name, and no such file. The message lists the profiles that there are."""


def profile_names() -> tuple[str, ...]:
    """The profiles, sorted."""
    return tuple(sorted(path.stem for path in PROFILES_FOLDER.glob("*.yaml")))


def find_machine_file(name: str | Path) -> Path:
    """The machine file that is meant: a path with a slash or an existing file is itself, a bare name is a profile.

    A path with a slash need not exist: who reads it says so. Raises UnknownMachine.
    """
    text = str(name)
    if "/" in text or Path(text).is_file():
        return Path(text)
    if text in profile_names():
        return PROFILES_FOLDER / f"{text}.yaml"
    raise UnknownMachine(
        f"{text!r} is not a machine profile, and not a file{_perhaps(text)}; profiles: {', '.join(profile_names())}; "
        "to use a file in another directory, write a path with a slash"
    )


def _perhaps(text: str) -> str:
    close = difflib.get_close_matches(text.lower().removesuffix(".yaml"), profile_names())
    return f" (did you mean {' or '.join(close)}?)" if close else ""
