"""Which labels may be written on our Node: legal ones, with a prefix of ours or of NVIDIA's, that instruct nobody.

One label that Kubernetes refuses would keep all the others from being written. The admission policy
(deploy/components/node-labels) allows these labels and no others.
"""

import re
from collections.abc import Mapping

WRITABLE_PREFIXES = ("nvidia.com/", "gpuplane.io/")
INSTRUCTIONS = re.compile(
    r"nvidia\.com/(device-plugin\.config|mig\.config.*|gpu\.deploy\..*|mps\.config|gpu\.workload\.config)"
)
"""Labels that tell an agent or the GPU operator what to do: a person or that operator sets them."""
MIG_STATE_LABEL = "nvidia.com/mig.config.state"
"""It instructs nobody: who carries out `nvidia.com/mig.config` writes it."""
NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)


def is_label_value(text: str) -> bool:
    """Whether Kubernetes takes the text as the value of a label."""
    return bool(VALUE.fullmatch(text))


def writable_labels(labels: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """(the labels that may be written, by key; the keys of the others)."""
    kept = {key: labels[key] for key in sorted(labels) if _is_writable(key, labels[key])}
    return kept, tuple(key for key in sorted(labels) if key not in kept)


def _is_writable(key: str, value: str) -> bool:
    prefix, _, name = key.partition("/")
    return bool(
        f"{prefix}/" in WRITABLE_PREFIXES
        and NAME.fullmatch(name)
        and is_label_value(value)
        and (key == MIG_STATE_LABEL or not INSTRUCTIONS.fullmatch(key))
    )
