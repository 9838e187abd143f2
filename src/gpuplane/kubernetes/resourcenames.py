"""Names of extended resources, as Kubernetes takes them. NVIDIA's are those of its device plugin."""

import re

RESOURCE_PREFIX = "nvidia.com/"
GPU_RESOURCE = f"{RESOURCE_PREFIX}gpu"
MIG_RESOURCE_PREFIX = f"{RESOURCE_PREFIX}mig-"
OWN_PREFIX = "gpuplane.io/"
MAX_NAME_LENGTH = 63
DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_SUBDOMAIN = re.compile(rf"{DNS_LABEL}(\.{DNS_LABEL})*")  # RFC 1123, as Kubernetes takes it


def qualified_resource_name(name: str, prefix: str = RESOURCE_PREFIX) -> str:
    """A resource name with its prefix. Raises ValueError: what is wrong with it."""
    rest = name.removeprefix(prefix)
    full = prefix + rest
    if not DNS_SUBDOMAIN.fullmatch(rest):
        tame = prefix + re.sub(r"[^a-z0-9.]+", "-", rest.rpartition("/")[2].lower()).strip("-.")
        perhaps = f"; did you mean {tame!r}?" if DNS_SUBDOMAIN.fullmatch(tame.removeprefix(prefix)) else ""
        raise ValueError(
            f"{full!r} is not a valid resource name: after {prefix} use only lowercase letters, digits, - "
            f"and ., and begin and end with a letter or digit{perhaps}"
        )
    if not DNS_SUBDOMAIN.fullmatch(prefix.removesuffix("/")):
        raise ValueError(f"{full!r} is not a valid resource name: {prefix.removesuffix('/')!r} is not a domain")
    if len(full) > MAX_NAME_LENGTH:
        raise ValueError(f"{full!r} is longer than {MAX_NAME_LENGTH} characters")
    return full
