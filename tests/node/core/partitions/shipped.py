"""The MIG configurations that NVIDIA ships, as facts, and files of them.

mig-parted: deployments/systemd/config-default.yaml at 14007872. gpu-operator: default-mig-parted-config, in
assets/state-mig-manager/0400_configmap.yaml at 0b0b6b15.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

A100_40 = "20B0 20B1 20F1 20F6"
OF_80 = "2330 2331 2322 20B2 20B5 20F3 20F5 2324"
OF_96 = "2342 233D 20B6 2329"
NVL, A30, H200, GH200_144 = "2321 233A", "20B7", "2335 233B", "2348"
RTX_6000, B200, GB200 = "2BB5", "2901", "2941"

BY_CARD: Sequence[tuple[str, str]] = (
    # the cards that a comment names, and of what each of their configurations has how many, for all GPUs of a node
    (A100_40, "1g.5gb*7 1g.5gb+me*1 2g.10gb*3 3g.20gb*2 4g.20gb*1 7g.40gb*1"),
    (
        RTX_6000,
        "1g.24gb+gfx*4 1g.24gb+me.all*1 1g.24gb-me*4 2g.48gb*2 2g.48gb+gfx*2 2g.48gb+me.all*1 2g.48gb-me*2 "
        "4g.96gb*1 4g.96gb+gfx*1",
    ),
    (OF_80, "1g.10gb+me*1 1g.20gb*4 2g.20gb*3 3g.40gb*2 4g.40gb*1 7g.80gb*1"),
    (A30, "1g.6gb*4 1g.6gb+me*1 2g.12gb*2 2g.12gb+me*1 4g.24gb*1"),
    (f"{NVL} {OF_96}", "1g.12gb*7 1g.12gb+me*1 2g.24gb*3"),
    (NVL, "3g.47gb*2 4g.47gb*1 7g.94gb*1"),
    (OF_96, "3g.48gb*2 4g.48gb*1 7g.96gb*1"),
    (f"{H200} {GH200_144}", "1g.18gb*7 1g.18gb+me*1"),
    (H200, "1g.35gb*4 2g.35gb*3 3g.71gb*2 4g.71gb*1 7g.141gb*1"),
    (GH200_144, "1g.36gb*4 2g.36gb*3 3g.72gb*2 4g.72gb*1 7g.144gb*1"),
    (f"{B200} {GB200}", "1g.23gb*7 1g.23gb+me*1"),
    (B200, "1g.45gb*4 2g.45gb*3 3g.90gb*2 4g.90gb*1 7g.180gb*1"),
    (GB200, "1g.47gb*4 2g.47gb*3 3g.95gb*2 4g.95gb*1 7g.189gb*1"),
)
OPERATOR_ONLY: Sequence[tuple[str, str]] = ((GB200, "1g.24gb+me*1 3g.93gb*2 4g.93gb*1 7g.186gb*1"),)
BALANCED = {
    RTX_6000: "1g.24gb*2 2g.48gb*1",
    B200: "1g.23gb*2 2g.45gb*1 3g.90gb*1",
    GH200_144: "1g.18gb*2 2g.36gb*1 3g.72gb*1",
    H200: "1g.18gb*2 2g.35gb*1 3g.71gb*1",
    NVL: "1g.12gb*2 2g.24gb*1 3g.47gb*1",
    OF_80: "1g.10gb*2 2g.20gb*1 3g.40gb*1",
    A100_40: "1g.5gb*2 2g.10gb*1 3g.20gb*1",
    A30: "1g.6gb*2 2g.12gb*1",
    OF_96: "1g.12gb*2 2g.24gb*1 3g.48gb*1",
}
SMALLEST_10 = {OF_80: "1g.10gb*7", A100_40: "1g.10gb*4"}
FILTERED: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    # file → name → the cards of an entry's device filter: what each of them has
    "mig-parted": {
        "all-1g.10gb": SMALLEST_10,
        "all-1g.24gb": {GB200: "1g.24gb*7", f"{NVL.split()[0]} {RTX_6000}": "1g.24gb*4"},
        "all-balanced": {GB200: "1g.24gb*2 2g.47gb*1 3g.95gb*1", **BALANCED},
    },
    "gpu-operator": {
        "all-1g.10gb": SMALLEST_10,
        "all-balanced": {GB200: "1g.23gb*2 2g.47gb*1 3g.93gb*1", **BALANCED},
    },
}


def counts(devices: str) -> dict[str, int]:
    """ "1g.5gb*2 2g.10gb*1" in its parts."""
    return {name: int(count) for name, _, count in (each.partition("*") for each in devices.split())}


def meant(file: str) -> list[tuple[str, str, dict[str, int]]]:
    """(name of a configuration, PCI device of a card that it is for, what that card shall have)."""
    rows = [*BY_CARD, *(OPERATOR_ONLY if file == "gpu-operator" else ())]
    alike = [(f"all-{name}", cards, {name: n}) for cards, devices in rows for name, n in counts(devices).items()]
    alike += [
        (name, cards, counts(each)) for name, entries in FILTERED[file].items() for cards, each in entries.items()
    ]
    return [(name.replace("+", "."), card, devices) for name, cards, devices in alike for card in cards.split()]


def text(file: str) -> bytes:
    """A file with all of them, in mig-parted's format."""
    configs: dict[str, list[dict[str, Any]]] = {
        "all-disabled": [{"devices": "all", "mig-enabled": False}],
        "all-enabled": [_entry({})],
    }
    for name, card, devices in meant(file):
        is_filtered = name in FILTERED[file]
        entries, last = configs.setdefault(name, []), _entry(devices)
        if is_filtered:
            last["device-filter"] = [f"0x{card}10DE"]
        if is_filtered or not entries:
            entries.append(last)
    if file == "gpu-operator":
        configs["all-1g.24gb"] = [_entry({"1g.24gb": 4})]
    return msgspec.yaml.encode({"version": "v1", "mig-configs": configs})


def _entry(devices: dict[str, int]) -> dict[str, Any]:
    return {"devices": "all", "mig-enabled": True, "mig-devices": devices}
