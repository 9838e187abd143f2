"""CDI directories: which files count, and that nothing that lies there stops a look."""

import errno
import os
from pathlib import Path

from gpuplane.node.host.specfiles import read_spec_file, read_spec_files
from tests.golden import Golden

GOOD = b"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: [{name: '0', containerEdits: {env: [A=1]}}]\n"


def test_json_and_yaml_files_count(tmp_path: Path) -> None:
    """By the end of the name alone, as in the runtimes' library; nothing else does, and no directory within."""
    for name in ("b.yaml", "a.json", ".json", "c.yml", "d.json.tmp", "e.JSON", "readme"):
        (tmp_path / name).write_bytes(GOOD)
    (tmp_path / "f.json").mkdir()
    (tmp_path / "f.json/g.json").write_bytes(GOOD)
    (tmp_path / "h.yaml").symlink_to("readme")

    assert [Path(file.path).name for file in read_spec_files([tmp_path])] == [".json", "a.json", "b.yaml", "h.yaml"]
    assert all(file.spec for file in read_spec_files([tmp_path]))


def test_the_directories_order_is_their_priority(tmp_path: Path) -> None:
    """One that is missing keeps its number and holds nothing."""
    for name in ("a", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.json").write_bytes(GOOD)

    looked = list(read_spec_files([tmp_path / "a", tmp_path / "b", tmp_path / "c"]))

    assert [(file.priority, file.path) for file in looked] == [
        (0, f"{tmp_path}/a/x.json"),
        (2, f"{tmp_path}/c/x.json"),
    ]


def test_what_cannot_be_read_is_a_problem_of_its_own(tmp_path: Path, golden: Golden) -> None:
    """A FIFO that nobody writes to, a device, a link to nowhere or to itself; the file beside them is read."""
    os.mkfifo(tmp_path / "a.json")
    for name, target in {"b": "/dev/zero", "c": "nowhere", "d": "d.json", "e": "/"}.items():
        (tmp_path / f"{name}.json").symlink_to(target)
    (tmp_path / "f.json").write_bytes(GOOD)

    problems = [file.problem.removeprefix(f"{tmp_path}/") for file in read_spec_files([tmp_path])]

    assert [each.partition(":")[0] for each in problems] == ["a.json", "b.json", "c.json", "d.json", "e.json", ""]
    golden(problems)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, golden: Golden) -> None:
    """It is told as too large."""
    path = tmp_path / "a.json"
    path.touch()
    os.truncate(path, 1 << 40)

    refused = read_spec_file(path)
    assert isinstance(refused, OSError)
    assert refused.errno == errno.EFBIG
    golden(file.problem for file in read_spec_files([tmp_path]))


def test_a_directory_that_is_none_is_told(tmp_path: Path, golden: Golden) -> None:
    """A file in its place; and a symbolic link, through which runtimes see nothing."""
    (tmp_path / "file").touch()
    (tmp_path / "real").mkdir()
    (tmp_path / "real/a.json").write_bytes(GOOD)
    (tmp_path / "link").symlink_to("real")

    problems = [file.problem for file in read_spec_files([tmp_path / "file", tmp_path / "link"])]
    assert [each.partition(":")[0] for each in problems] == [f"{tmp_path}/file", f"{tmp_path}/link"]
    golden(problems)
