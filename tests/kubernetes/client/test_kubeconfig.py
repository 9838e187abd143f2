"""A kubeconfig: what its current context means, and what is wrong with one."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from lightkube import ConfigError
from lightkube.config.models import Cluster, User

from gpuplane.cli.kit.options import kubeconfig
from gpuplane.kubernetes.client.kubeconfig import parse_kubeconfig

GOOD = """
apiVersion: v1
kind: Config
preferences: {}
current-context: mine
clusters:
- {name: c, cluster: {server: "https://c:6443", certificate-authority: ca.crt, extra: 1}}
- {name: d, cluster: {server: "https://d:6443"}}
contexts:
- {name: mine, context: {cluster: c, user: u, namespace: team}}
- {name: other, context: {cluster: d}}
users:
- {name: u, user: {token: secret}}
"""


def test_the_current_context_is_read() -> None:
    found = parse_kubeconfig(GOOD.encode(), Path("/k/config"))

    assert found.cluster == Cluster(server="https://c:6443", certificate_auth="ca.crt")
    assert found.user == User(token="secret")
    assert found.namespace == "team"
    assert found.abs_file("ca.crt") == Path("/k/ca.crt")


def test_a_context_without_a_user_or_a_namespace() -> None:
    """`kubectl config` writes `users: null` where there is none."""
    text = GOOD.replace("current-context: mine", "current-context: other").partition("users:")[0] + "users: null\n"
    found = parse_kubeconfig(text.encode(), Path("config"))

    assert (found.cluster.server, found.user, found.namespace) == ("https://d:6443", None, "default")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is empty"),
        ("# nothing", "it is empty"),
        ("- a", "Expected `object`, got `array`"),
        ("words", "Expected `object`, got `str`"),
        ("{}", "it has no current-context: choose one with `kubectl config use-context NAME`"),
        (GOOD.replace("current-context: mine", 'current-context: ""'), "it has no current-context"),
        (GOOD.replace("current-context: mine", "current-context: 5"), r"got `int` - at `\$\.current-context`"),
        (
            GOOD.replace("current-context: mine", "current-context: moon"),
            "no context 'moon', which its current-context n",
        ),
        (GOOD.replace("cluster: c,", "cluster: x,"), "no cluster 'x', which its context 'mine' names; there is c, d"),
        (GOOD.replace("name: u,", "name: v,"), "no user 'u', which its context 'mine' names; there is v"),
        (GOOD.partition("users:")[0] + "users: 5", r"Expected `array \| null`, got `int` - at `\$\.users`"),
        (GOOD.replace("token: secret", "token: 5"), r"got `int` - at `\$\.users\[0\]\.user\.token`"),
        (GOOD.replace('{server: "https://d:6443"}', "null"), r"at `\$\.clusters\[1\]\.cluster`"),
        ("a: b: c", r"it is not YAML: mapping values are not allowed here \(line 1\)"),
        ("[" * 100_000, "it is not YAML"),
        ("\x00", "it is not YAML"),
        ("2026-02-30: x", "it is not YAML"),
    ],
)
def test_what_is_wrong_is_said(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_kubeconfig(text.encode(), Path("config"))


@pytest.mark.parametrize(
    ("variable", "read"),
    [
        ("{here}/a", "{here}/a"),
        ("{here}/none:{here}/a:{here}/b", "{here}/a"),
        (":{here}/b:{here}/a:", "{here}/b"),
        ("{here}/none:{here}/neither", "{here}/none"),
        (":", "None"),
        ("", "None"),
    ],
)
def test_of_a_list_the_first_that_is_there_is_read(tmp_path: Path, variable: str, read: str) -> None:
    """A path on the command line is one path."""
    for name in ("a", "b"):
        (tmp_path / name).touch()

    @click.command()
    @kubeconfig("")
    def command(kubeconfig: Path | None) -> None:
        click.echo(f"{kubeconfig}")

    shown = CliRunner().invoke(command, env={"KUBECONFIG": variable.format(here=tmp_path)})
    assert shown.output == f"{read.format(here=tmp_path)}\n"
    assert CliRunner().invoke(command, ["--kubeconfig", "a:b"]).output == "a:b\n"
