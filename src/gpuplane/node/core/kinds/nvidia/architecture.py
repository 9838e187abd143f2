"""NVIDIA's families of GPUs by compute capability (k8s-device-plugin 0.20, internal/lm/resource.go)."""

_FAMILIES = {
    1: "tesla",
    2: "fermi",
    3: "kepler",
    5: "maxwell",
    6: "pascal",
    7: "volta",
    8: "ampere",
    9: "hopper",
    10: "blackwell",
    12: "blackwell",
    13: "rubin",
}
_TURING, _ADA_LOVELACE = (7, 5), (8, 9)


def parse_compute_capability(text: str) -> tuple[int, int] | None:
    """(major, minor) of "9.0"; None where the driver does not tell it."""
    major, _, minor = text.partition(".")
    if not (major.isdecimal() and minor.isdecimal()) or int(major) == 0:
        return None
    return int(major), int(minor)


def gpu_family(capability: tuple[int, int]) -> str:
    """The family's name; "undefined" for one that has none yet."""
    major, _ = capability
    if major == _TURING[0] and capability >= _TURING:
        return "turing"
    if major == _ADA_LOVELACE[0] and capability >= _ADA_LOVELACE:
        return "ada-lovelace"
    return _FAMILIES.get(major, "undefined")
