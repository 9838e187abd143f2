"""Where a driver root has what NVIDIA installs.

Apart from `library`, for the agent looks for programs there too, and must not import what loads the library.
"""

import os

SONAME = "libnvidia-ml.so.1"
FOLDERS = (  # in the order of NVIDIA's device plugin (internal/info/root.go), so that both take the same one
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
PROGRAMS = ("opt/bin", "usr/bin", "usr/sbin", "bin", "sbin")  # likewise of its DRA driver (pkg/driverroot)


def libraries(root: str) -> list[str]:
    """Where libnvidia-ml may be, the likeliest first."""
    return [os.path.join(root, folder, SONAME) for folder in FOLDERS]


def library(root: str) -> str | None:
    """libnvidia-ml's file; None where the dynamic linker shall find it."""
    if root in ("", "/"):
        return None
    return next((each for each in libraries(root) if os.path.exists(each)), None)


def program(root: str, name: str) -> str | None:
    """A program's file; None where the root has none."""
    return next(filter(os.path.isfile, (os.path.join(root, folder, name) for folder in PROGRAMS)), None)
