"""What this process may not do, asked before it tries: so that it is said once, with the path that stands in the way.

The kernel is asked, by the ids and capabilities that count (faccessat2 with AT_EACCESS). The user's number says little:
root without capabilities may be refused, and another user may have directories of its own.
"""

import os
import stat
from pathlib import Path


def unwritable_directory(folder: Path) -> Path | None:
    """The directory that keeps this process from making files in a folder, or from making the folder; None: none does.

    What else may be wrong there, as a file in its place or a read-only mount, is for those to tell who write there.
    """
    for each in (folder, *folder.parents):
        try:
            mode = each.stat().st_mode
        except (FileNotFoundError, PermissionError):
            continue  # it would be made in the next one, or that one may not be searched
        except OSError:
            return None
        refused = stat.S_ISDIR(mode) and not os.access(each, os.W_OK | os.X_OK, effective_ids=True)
        return each if refused and not os.statvfs(each).f_flag & os.ST_RDONLY else None
    return None


def is_inaccessible(file: Path, mode: int) -> bool:
    """Whether a file is there, or may be, and this process may not open it so (os.R_OK, os.W_OK)."""
    try:
        file.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(file, mode, effective_ids=True)


def process_identity() -> str:
    """As whom this process is judged."""
    return f"uid {os.geteuid()}" if os.geteuid() else "root without CAP_DAC_OVERRIDE"
