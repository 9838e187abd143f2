"""Names of extended resources, as Kubernetes takes them and NVIDIA's device plugin calls them."""

import re

RESOURCE_PREFIX = "nvidia.com/"
GPU_RESOURCE = f"{RESOURCE_PREFIX}gpu"
MIG_RESOURCE_PREFIX = f"{RESOURCE_PREFIX}mig-"
MAX_NAME_LENGTH = 63
DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_SUBDOMAIN = re.compile(rf"{DNS_LABEL}(\.{DNS_LABEL})*")  # RFC 1123, as Kubernetes takes it


def qualified_resource_name(name: str) -> str:
    """A resource name with its prefix. Raises ValueError: what is wrong with it."""
    rest = name.removeprefix(RESOURCE_PREFIX)
    full = RESOURCE_PREFIX + rest
    if not DNS_SUBDOMAIN.fullmatch(rest):
        tame = RESOURCE_PREFIX + re.sub(r"[^a-z0-9.]+", "-", rest.rpartition("/")[2].lower()).strip("-.")
        perhaps = f"; did you mean {tame!r}?" if DNS_SUBDOMAIN.fullmatch(tame.removeprefix(RESOURCE_PREFIX)) else ""
        raise ValueError(
            f"{full!r} is not a valid resource name: after {RESOURCE_PREFIX} use only lowercase letters, digits, - "
            f"and ., and begin and end with a letter or digit{perhaps}"
        )
    if len(full) > MAX_NAME_LENGTH:
        raise ValueError(f"{full!r} is longer than {MAX_NAME_LENGTH} characters")
    return full
