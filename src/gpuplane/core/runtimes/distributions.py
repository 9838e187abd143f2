"""Kubernetes distributions that bring a containerd of their own and write its configuration anew at each start.

There a change of what containerd reads is lost; it belongs into the template that the file is made from.
"""

import posixpath
import re
from collections.abc import Collection

from gpuplane.model.value import Value


class Distribution(Value):
    """`root` and `config`: where the file is that containerd reads; `templates`: beside it, newest version first."""

    name: str
    root: str
    config: str
    binary: str
    restart: str
    templates: tuple[str, ...] = ()
    generated: str = ""  # the file is generated only where it says this
    instead: str = ""  # what to do where there are no templates


DISTRIBUTIONS = (
    # docs.k3s.io/advanced: config-v3.toml.tmpl is for containerd 2, config.toml.tmpl for containerd 1.7
    Distribution(
        name="k3s",
        root="/var/lib/rancher",
        config="/k3s/agent/etc/containerd/config.toml",
        binary="/var/lib/rancher/k3s/data/current/bin/containerd",
        restart="systemctl restart k3s (on agents: k3s-agent)",
        templates=("config-v3.toml.tmpl", "config.toml.tmpl"),
    ),
    Distribution(
        name="RKE2",
        root="/var/lib/rancher",
        config="/rke2/agent/etc/containerd/config.toml",
        binary="/var/lib/rancher/rke2/bin/containerd",
        restart="systemctl restart rke2-agent (on servers: rke2-server)",
        templates=("config-v3.toml.tmpl", "config.toml.tmpl"),
    ),
    # canonical.com/microk8s/docs/configuring-services
    Distribution(
        name="MicroK8s",
        root="/var/snap",
        config="/microk8s/current/args/containerd.toml",
        binary="/snap/microk8s/current/bin/containerd",
        restart="microk8s stop; microk8s start",
        templates=("containerd-template.toml",),
    ),
    # docs.k0sproject.io/stable/runtime: k0s merges the drop-ins itself, from 1.27.1 on
    Distribution(
        name="k0s",
        root="/etc",
        config="/k0s/containerd.toml",
        binary="/var/lib/k0s/bin/containerd",
        restart="systemctl restart k0sworker (on controllers: k0scontroller)",
        generated="k0s_managed=true",
        instead="write it into a file of its own in the folder containerd.d beside it, which k0s merges",
    ),
)


def of(path: str, text: str) -> Distribution | None:
    """Which distribution writes a file, by its path and by what it says."""
    for each in DISTRIBUTIONS:
        if path.endswith(each.config) and each.generated in text:
            return each
    return None


def template(distribution: Distribution, path: str, number: int, there: Collection[str]) -> str:
    """The path of the template that a file is made from, of those that are there; "" where there is none.

    `number`: the version of the configuration, 0 where it is not known. A template for another version is not used.
    """
    for name in distribution.templates:
        fits = not number or len(distribution.templates) == 1 or ("-v3." in name) == (number >= 3)
        if fits and (found := posixpath.join(posixpath.dirname(path), name)) in there:
            return found
    return ""


def has_base(text: str) -> bool:
    """Whether a template takes over the distribution's own, which has the CRI plugin's table already."""
    return re.search(r'\{\{-?\s*template\s+"base"', text) is not None


def base_version(path: str) -> int:
    """The version of the configuration that a distribution's own template has."""
    return 3 if "-v3." in posixpath.basename(path) else 2
