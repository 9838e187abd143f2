"""A kubeconfig as lightkube's values. Whatever is wrong with one is said in words, and where it is.

The format is that of k8s.io/client-go/tools/clientcmd/api/v1. lightkube reads it, too, but raises whatever comes of a
file that is of another shape.
"""

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from lightkube import ConfigError, SingleConfig
from lightkube.config.models import Cluster, Context, User

T = TypeVar("T", Cluster, Context, User)


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: Cluster


class _NamedUser(msgspec.Struct):
    name: str
    user: User


class _NamedContext(msgspec.Struct):
    name: str
    context: Context


class _Document(msgspec.Struct):
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None
    current_context: str | None = msgspec.field(name="current-context", default=None)


def parse_kubeconfig(data: bytes, path: Path) -> SingleConfig:
    """What the current context of a kubeconfig says. `path`: where it is, for relative paths in it. Raises ConfigError.

    Of things of one name the last one counts, as for lightkube.
    """
    try:
        document: Any = yaml.safe_load(data)
    except yaml.MarkedYAMLError as error:
        line = f" (line {error.problem_mark.line + 1})" if error.problem_mark else ""
        raise ConfigError(f"it is not YAML: {error.problem}{line}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError):
        raise ConfigError("it is not YAML") from None
    if document is None:
        raise ConfigError("it is empty")
    try:
        found = msgspec.convert(document, _Document)
    except msgspec.ValidationError as error:
        raise ConfigError(f"it is not as a kubeconfig has to be: {error}") from None
    if not found.current_context:
        raise ConfigError("it has no current-context: choose one with `kubectl config use-context NAME`")
    by = "its current-context"
    context = _named("context", {each.name: each.context for each in found.contexts or ()}, found.current_context, by)
    by = f"its context {found.current_context!r}"
    cluster = _named("cluster", {each.name: each.cluster for each in found.clusters or ()}, context.cluster, by)
    user = None
    if context.user:
        user = _named("user", {each.name: each.user for each in found.users or ()}, context.user, by)
    return SingleConfig(found.current_context, context, cluster, user, path)


def _named(kind: str, all: dict[str, T], name: str, by: str) -> T:
    if name not in all:
        there = ", ".join(sorted(all)) or "none"
        raise ConfigError(f"it has no {kind} {name!r}, which {by} names; there is {there}")
    return all[name]
