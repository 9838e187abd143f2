"""Semantic versions 2.0.0: how they are read and which one is newer.

Kubernetes reads them by github.com/blang/semver/v4; what may be normalized is apiserver/pkg/cel/library/semverlib.go.
"""

import re

import msgspec

_NUMBER_PATTERN = r"0|[1-9]\d*"
_SEMVER_PATTERN = re.compile(
    rf"({_NUMBER_PATTERN})\.({_NUMBER_PATTERN})\.({_NUMBER_PATTERN})"
    rf"(?:-((?:{_NUMBER_PATTERN}|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:{_NUMBER_PATTERN}|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?"
)
Precedence = tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]


class Version(msgspec.Struct, frozen=True):
    """A version without its build, which says nothing of what is newer: two that differ in it alone are equal."""

    major: int
    minor: int
    patch: int
    prerelease: str = ""

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}" + (f"-{self.prerelease}" if self.prerelease else "")

    @property
    def precedence(self) -> Precedence:
        """The newer of two versions has the greater one (semver.org, 11)."""
        parts = (self.prerelease.split(".")) if self.prerelease else []
        keys = tuple((False, int(part), "") if part.isdigit() else (True, 0, part) for part in parts)
        return (self.major, self.minor, self.patch, not parts, keys)


def parse_version(text: str, normalize: bool = False) -> Version:
    """The version that a text stands for. Raises ValueError.

    `normalize` takes a leading "v", leading zeros, and versions that lack the minor or the patch number.
    """
    shape = _SEMVER_PATTERN.fullmatch(_complete_version(text) if normalize else text)
    if shape is None:
        raise ValueError(f"{text!r} is no semantic version")
    major, minor, patch, prerelease, _ = shape.groups()
    return Version(int(major), int(minor), int(patch), prerelease or "")


def _complete_version(text: str) -> str:
    parts = text.removeprefix("v").split(".", 2)
    if len(parts) < 3 and re.search("[+-]", parts[-1]):
        raise ValueError("short version cannot contain PreRelease/Build meta data")
    parts = [re.sub(r"^0+(?=\d)", "", part) for part in parts]
    return ".".join((*parts, "0", "0")[:3])
