"""A library's SONAME is read, and of whatever else there is nothing is told or raised."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.hardware.nvidia.driver.elf import read_soname
from tests.trees import shared_object

WHOLE = shared_object("libcuda.so.1", needed=("libc.so.6", "libm.so.6"))


def told(content: bytes) -> str:
    """What is told of a file with this content."""
    file = os.memfd_create("library")
    try:
        os.write(file, content)
        return read_soname(file)
    finally:
        os.close(file)


def test_the_soname_is_told() -> None:
    """If there is one."""
    assert told(WHOLE) == "libcuda.so.1"
    assert told(shared_object()) == ""


def test_a_library_that_a_compiler_made_is_read(tmp_path: Path) -> None:
    """With segments that stand elsewhere in memory than in the file."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, cc")
    source, library = tmp_path / "x.c", tmp_path / "libx.so"
    source.write_text("int variable = 1; int function(void) { return variable; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libx.so.7", "-o", library, source], check=True)

    assert told(library.read_bytes()) == "libx.so.7"


@given(st.binary(max_size=400))
def test_what_is_no_library_has_none(content: bytes) -> None:
    """Any bytes, with the beginning of a library or without."""
    assert told(content) == ""
    told(WHOLE[:16] + content)


@given(st.integers(0, len(WHOLE)), st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=16))
def test_a_broken_library_breaks_nothing(end: int, at: int, other: bytes) -> None:
    """One that is cut off, or has other bytes somewhere."""
    told(WHOLE[:end])
    told(WHOLE[:at] + other + WHOLE[at + len(other) :])
