"""Files that no administrator writes: one error or the right answer, and no wait for it."""

from pathlib import Path

import pytest

from tests.node.core.runtimes.runs import run, unchanged

CRI = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n'
REFUSED = {
    "a number of 5,000 digits": f"x = {'9' * 5000}\n",
    "a key of 60,000 parts": ".".join(["a"] * 60_000) + " = 1\n",
    "a quoted key of 40,000 parts": ".".join(['"a"'] * 40_000) + " = 1\n",
    "such a key in an inline table": "x = {" + ".".join(["a"] * 60_000) + " = 1}\n",
    "a header of 60,000 parts": "[" + ".".join(["a"] * 60_000) + "]\n",
    "an array of arrays": f"x = {'[' * 60_000}{']' * 60_000}\n",
    "tables in tables": f"x = {'{a = ' * 20_000}1{'}' * 20_000}\n",
    "a file that is too large": "#" * 300_000,
    "a number of 5,000 digits in a list of directories": f"{CRI}enable_cdi = true\ncdi_spec_dirs = [{'9' * 5000}]\n",
    "a list of 14,000 directories": f"{CRI}enable_cdi = true\ncdi_spec_dirs = {['/directory'] * 14_000}\n",
    "stars in every directory": 'imports = ["/*/*/*/*.toml"]\n',
    "1,000 patterns": "imports = [" + ", ".join(f'"/none{n}*"' for n in range(1000)) + "]\n",
}
JUDGED = {
    "60,000 lines in a string that look like headers": CRI + 'x = """\n' + "[a]\n" * 60_000 + '"""\n',
    "14,000 tables": CRI + "".join(f"[a{n}]\n" for n in range(14_000)),
    "14,000 keys": CRI + "".join(f"k{n} = 1\n" for n in range(14_000)),
    "200,000 spaces": CRI + " " * 200_000,
    "two stars walk no tree": 'version = 2\nimports = ["/**/*.no-such-file"]\n',
}


def judged(tmp_path: Path, text: str) -> str:
    """What `--check` says of a main file."""
    file = tmp_path / "config.toml"
    file.write_text(text)
    with unchanged(tmp_path):
        done = run("containerd", "--config", file, "--runtime-version", "1.7.24", "--check")
    assert done.exit_code == 1
    assert not done.exception or isinstance(done.exception, SystemExit)
    return done.output


@pytest.mark.parametrize("case", REFUSED)
def test_a_hostile_file_is_one_error(case: str, tmp_path: Path) -> None:
    """Nothing is parsed that takes the square of its length."""
    (line,) = judged(tmp_path, REFUSED[case]).splitlines()

    assert line.startswith(("Error: ", "gpuplane: error: ")) and len(line) < 500


@pytest.mark.parametrize("case", JUDGED)
def test_a_large_file_is_judged(case: str, tmp_path: Path) -> None:
    """It lacks the key."""
    assert "Nothing was written." in judged(tmp_path, JUDGED[case])


def test_files_that_import_each_other_are_read_once(tmp_path: Path) -> None:
    """A pattern is looked up once; more files than anybody has are an error."""
    folder = tmp_path / "conf.d"
    folder.mkdir()
    for n in range(250):
        (folder / f"{n}.toml").write_text(f'imports = ["{folder}/*.toml"]\n')
    text = f'version = 2\nimports = ["{folder}/*.toml"]\n'
    assert "Nothing was written." in judged(tmp_path, text)

    for n in range(250, 1500):
        (folder / f"{n}.toml").write_text(f'imports = ["{folder}/*.toml"]\n')
    assert "more than 256 files" in judged(tmp_path, text)


def test_a_number_of_5000_digits_in_dockers_file_is_one_error(tmp_path: Path) -> None:
    """As in containerd's."""
    file = tmp_path / "daemon.json"
    file.write_text(f'{{"x": {"9" * 5000}}}')

    done = run("docker", "--config", file, "--runtime-version", "27.5.1", "--check")
    assert (done.exit_code, len(done.output.splitlines())) == (1, 1)


def test_a_line_of_many_spaces_in_dockers_file_is_read_once(tmp_path: Path) -> None:
    """It is no margin of the line that is written."""
    file = tmp_path / "daemon.json"
    file.write_text('{"a": 1,\n' + " " * 100_000 + '"b": 2,\n"features": {}}')

    done = run("docker", "--config", file, "--runtime-version", "27.5.1", "--check")

    assert done.exit_code == 1
    assert "Nothing was written." in done.output
