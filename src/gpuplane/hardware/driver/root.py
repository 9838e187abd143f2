"""Where a driver root has what NVIDIA installs.

Apart from `library`, for the agent looks for programs there too, and must not import what loads the library.
"""

from pathlib import Path

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


def libraries(root: str) -> list[Path]:
    """Where libnvidia-ml may be, the likeliest first."""
    return [Path(root, folder, SONAME) for folder in FOLDERS]


def library(root: str) -> Path | None:
    """libnvidia-ml's file; None where the dynamic linker shall find it."""
    if root in ("", "/"):
        return None
    return next((each for each in libraries(root) if each.exists()), None)


def program(root: str, name: str) -> Path | None:
    """A program's file; None where the root has none."""
    return next((path for folder in PROGRAMS if (path := Path(root, folder, name)).is_file()), None)
