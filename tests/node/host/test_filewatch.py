"""Files that people edit while we run: what is seen, and what costs only itself."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuplane.node.host import filewatch
from gpuplane.node.host.filewatch import FolderContents, watch_file, watch_file_or_folder

EVERY = 0.01


async def seen(looks: AsyncIterator[bytes | FolderContents | OSError]) -> bytes | FolderContents | OSError:
    """The next that is seen, within a deadline."""
    async with asyncio.timeout(60):
        return await anext(looks)


def mount(directory: Path, version: str, **content: str) -> None:
    """Swap the files of a directory as kubelet does those of a ConfigMap (pkg/volume/util/atomic_writer.go)."""
    data = directory / f"..{version}"
    data.mkdir(parents=True)
    for name, text in content.items():
        (data / name).write_text(text)
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")
    (directory / "..data_tmp").symlink_to(data.name)
    (directory / "..data_tmp").replace(directory / "..data")


async def test_what_a_path_is_is_seen_at_each_look(tmp_path: Path) -> None:
    """Nothing, a file, a directory and nothing again, in whatever order."""
    path = tmp_path / "config"
    looks = watch_file_or_folder(path, EVERY)
    assert isinstance(await seen(looks), FileNotFoundError)
    path.write_text("a")
    assert await seen(looks) == b"a"
    path.unlink()
    assert isinstance(await seen(looks), FileNotFoundError)
    mount(path, "1", x="1")
    assert await seen(looks) == {"x": b"1"}
    mount(path, "2", x="2", y="3")
    assert await seen(looks) == {"x": b"2", "y": b"3"}


async def test_one_file_that_cannot_be_read_costs_no_other(tmp_path: Path) -> None:
    """Its error stands in its place; what is no file at all is left out."""
    (tmp_path / "good").write_text("1")
    (tmp_path / "bad").symlink_to("bad")
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    looks = watch_file_or_folder(tmp_path, EVERY)
    found = await seen(looks)

    assert isinstance(found, dict)
    assert list(found) == ["bad", "gone", "good"]
    assert found["good"] == b"1"
    assert isinstance(found["bad"], OSError) and isinstance(found["gone"], FileNotFoundError)


async def test_a_swap_in_the_middle_of_a_look_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What went away while it was read is read again: nobody hears of it."""
    mount(tmp_path, "1", x="1", y="1")
    real, swaps = filewatch._content, iter([None])

    def swapped(path: Path, most: int) -> bytes | OSError | None:
        if path.name == "y" and next(swaps, "done") is None:
            mount(tmp_path, "2", x="2", y="2")
            return FileNotFoundError(2, "No such file or directory")
        return real(path, most)

    monkeypatch.setattr(filewatch, "_content", swapped)
    looks = watch_file_or_folder(tmp_path, EVERY)
    assert await seen(looks) == {"x": b"2", "y": b"2"}


@pytest.mark.parametrize("hostile", ["fifo", "pipe", "device", "sparse"])
async def test_what_is_no_file_that_ends_is_an_error_once(tmp_path: Path, hostile: str) -> None:
    """Nobody waits for a pipe or reads a file without an end; a file that comes in its place is read."""
    path, (reading, writing) = tmp_path / "config", os.pipe()
    os.write(writing, b"a: 1")
    if hostile == "fifo":
        os.mkfifo(path)
    elif hostile == "sparse":
        path.touch()
        os.truncate(path, 1 << 40)
    else:
        path.symlink_to("/dev/zero" if hostile == "device" else f"/proc/self/fd/{reading}")
    looks = watch_file(path, EVERY)
    problem = await seen(looks)
    assert isinstance(problem, OSError)
    assert problem.errno == (errno.EFBIG if hostile == "sparse" else errno.EINVAL)
    again = asyncio.create_task(seen(looks))
    await asyncio.sleep(5 * EVERY)
    assert not again.done()
    (tmp_path / "new").write_text("a: 2")
    (tmp_path / "new").replace(path)
    assert await again == b"a: 2"
    os.close(reading)
    os.close(writing)


async def test_a_file_of_a_directory_without_an_end_costs_itself(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("1")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 1 << 40)
    found = await seen(watch_file_or_folder(tmp_path, EVERY))
    assert isinstance(found, dict)
    assert found["good"] == b"1"
    assert isinstance(found["large"], OSError)


async def test_a_directory_without_an_end_is_an_error(tmp_path: Path) -> None:
    """Too many files, or too much in all of them: the memory that it takes is bounded."""
    for number in range(filewatch.MAX_FILES + 1):
        (tmp_path / f"{number}").touch()
    found = await seen(watch_file_or_folder(tmp_path, EVERY))
    assert isinstance(found, OSError)
    assert found.filename == str(tmp_path)


async def test_what_is_too_much_of_a_directory_costs_the_last_files(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}").write_bytes(bytes(3 << 20))
    found = await seen(watch_file_or_folder(tmp_path, EVERY))
    assert isinstance(found, dict)
    assert [isinstance(content, bytes) for content in found.values()] == [True] * 5 + [False]
