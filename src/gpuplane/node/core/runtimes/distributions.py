"""Kubernetes distributions that bring their own containerd and generate its configuration at each start.

A change in the generated file is lost at the next start. It belongs in the template that the file is generated from.
"""

import posixpath
from collections.abc import Collection

from gpuplane.base.value import Value


class Distribution(Value):
    """`config_root` + `config_path_below_root`: the file that containerd reads. `templates`: names beside it, newest
    first."""

    name: str
    config_root: str
    config_path_below_root: str
    containerd_binary: str
    restart_command: str
    templates: tuple[str, ...] = ()
    generated_marker: str = ""  # text that only a generated file has; "": every file at that path is generated
    advice_without_template: str = ""  # what a person can do if the distribution has no templates


KUBERNETES_DISTRIBUTIONS = (
    # docs.k3s.io/advanced: config-v3.toml.tmpl is for containerd 2, config.toml.tmpl for containerd 1.7
    Distribution(
        name="k3s",
        config_root="/var/lib/rancher",
        config_path_below_root="/k3s/agent/etc/containerd/config.toml",
        containerd_binary="/var/lib/rancher/k3s/data/current/bin/containerd",
        restart_command="systemctl restart k3s (on agents: k3s-agent)",
        templates=("config-v3.toml.tmpl", "config.toml.tmpl"),
    ),
    Distribution(
        name="RKE2",
        config_root="/var/lib/rancher",
        config_path_below_root="/rke2/agent/etc/containerd/config.toml",
        containerd_binary="/var/lib/rancher/rke2/bin/containerd",
        restart_command="systemctl restart rke2-agent (on servers: rke2-server)",
        templates=("config-v3.toml.tmpl", "config.toml.tmpl"),
    ),
    # canonical.com/microk8s/docs/configuring-services
    Distribution(
        name="MicroK8s",
        config_root="/var/snap",
        config_path_below_root="/microk8s/current/args/containerd.toml",
        containerd_binary="/snap/microk8s/current/bin/containerd",
        restart_command="microk8s stop; microk8s start",
        templates=("containerd-template.toml",),
    ),
    # docs.k0sproject.io/stable/runtime: k0s merges the drop-ins itself, from 1.27.1 on
    Distribution(
        name="k0s",
        config_root="/etc",
        config_path_below_root="/k0s/containerd.toml",
        containerd_binary="/var/lib/k0s/bin/containerd",
        restart_command="systemctl restart k0sworker (on controllers: k0scontroller)",
        generated_marker="k0s_managed=true",
        advice_without_template=(
            "write the keys into a separate file in containerd.d, in the same directory as this file; k0s "
            "merges the separate file"
        ),
    ),
)


def find_distribution(path: str, text: str) -> Distribution | None:
    """The distribution that generates a file, by the file's path and content; None if none does."""
    for each in KUBERNETES_DISTRIBUTIONS:
        if path.endswith(each.config_path_below_root) and each.generated_marker in text:
            return each
    return None


def find_template(distribution: Distribution, path: str, config_version: int, existing_files: Collection[str]) -> str:
    """The path of the template that a file is generated from; "" if none exists.

    `config_version`: of the configuration, 0 if not known: a template for another version is not used.
    `existing_files`: the paths that exist beside the file.
    """
    for name in distribution.templates:
        fits = not config_version or len(distribution.templates) == 1 or ("-v3." in name) == (config_version >= 3)
        if fits and (found := posixpath.join(posixpath.dirname(path), name)) in existing_files:
            return found
    return ""
