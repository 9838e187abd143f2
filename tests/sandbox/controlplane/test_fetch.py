"""Programs that are downloaded from a server that does what servers do: it cuts off, lies, and sends without end."""

import hashlib
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuplane.sandbox.controlplane import fetch as fetching
from gpuplane.sandbox.controlplane.fetch import FetchError, fetch
from gpuplane.sandbox.controlplane.programs import API_SERVER, ETCD, NAMES, SCHEDULER
from gpuplane.sandbox.controlplane.releases import CHECKSUMS, KUBERNETES_VERSION, downloads
from tests.sandbox.controlplane.releaseserver import VERSION, Handler, Site, program, serve


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses."""
    monkeypatch.setattr(fetching, "PAUSE", 0.0)


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def address(site: Site) -> Iterator[str]:
    with serve(site) as found:
        yield found


def get(tmp_path: Path, address: str, architecture: str = "amd64") -> Path:
    """The directory of what was fetched."""
    directory = tmp_path / "programs"
    fetch(downloads(VERSION, architecture, address), directory, architecture)
    return directory


def refused(tmp_path: Path, address: str) -> str:
    """What is said. Nothing has a name then."""
    with pytest.raises(FetchError) as raised:
        get(tmp_path, address)
    assert not (tmp_path / "programs").exists()
    return str(raised.value)


def api_server(site: Site) -> str:
    return f"{site.folder}/{API_SERVER}"


def test_all_programs_are_there(tmp_path: Path, site: Site, address: str) -> None:
    """As the release has them, and nothing else is left."""
    said = list[tuple[str, int, int]]()
    found = fetch(downloads(VERSION, "amd64", address), tmp_path / "programs", "amd64", lambda *each: said.append(each))

    assert {path.name: path.read_bytes() for path in (tmp_path / "programs").iterdir()} == site.programs
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "programs").iterdir()} == {0o755}
    assert [path.name for path in tmp_path.iterdir()] == ["programs"]
    assert [each.name for each in found] == list(NAMES)
    assert {(name, there) for name, there, total in said if there == total} == {
        (ETCD, len(site.content[site.archive])),
        *((name, 300_000) for name in NAMES[1:]),
    }


def test_the_official_release_is_where_it_is() -> None:
    """The paths of both sites, also below a mirror; no server is asked for checksums of what we were tested with."""
    official = {each.name: each for each in downloads(KUBERNETES_VERSION, "arm64")}
    mirrored = {each.name: each for each in downloads(KUBERNETES_VERSION, "arm64", "https://mirror.example/a/")}

    assert official[SCHEDULER].url == "https://dl.k8s.io/release/v1.36.2/bin/linux/arm64/kube-scheduler"
    assert official[ETCD].url == (
        "https://github.com/etcd-io/etcd/releases/download/v3.5.30/etcd-v3.5.30-linux-arm64.tar.gz"
    )
    assert mirrored[SCHEDULER].url == "https://mirror.example/a/release/v1.36.2/bin/linux/arm64/kube-scheduler"
    assert mirrored[ETCD].url.startswith("https://mirror.example/a/etcd-io/etcd/releases/download/")
    assert {each.checksum for each in official.values()} >= {CHECKSUMS["arm64", name] for name in NAMES[1:]}
    assert all(len(checksum) == 64 for checksum in CHECKSUMS.values())


def test_what_is_cut_off_goes_on_where_it_ended(tmp_path: Path, site: Site, address: str) -> None:
    """As often as something new comes, in the same run."""

    def cut(handler: Handler, content: bytes) -> None:
        begin = int((handler.headers["range"] or "bytes=0-")[6:-1])
        handler.head(206 if begin else 200, len(content) - begin, f"bytes {begin}-{len(content) - 1}/{len(content)}")
        handler.wfile.write(content[begin : begin + 40_000])

    site.answers[api_server(site)] = cut
    get(tmp_path, address)
    ranges = [asked for path, asked in site.asked if path == api_server(site)]

    assert ranges == [None, *(f"bytes={begin}-" for begin in range(40_000, 300_000, 40_000))]


def test_one_that_is_always_cut_off_is_an_error(tmp_path: Path, site: Site, address: str) -> None:
    """What is there is used in the next run."""

    def cut(handler: Handler, content: bytes) -> None:
        if handler.headers["range"] is None:
            handler.head(200, len(content))
            handler.wfile.write(content[:1000])

    site.answers[api_server(site)] = cut
    assert "try again" in refused(tmp_path, address)

    del site.answers[api_server(site)]
    before = len(site.asked)
    get(tmp_path, address)
    assert (api_server(site), "bytes=1000-") in site.asked[before:]
    assert site.archive not in [path for path, _ in site.asked[before:]]  # etcd is complete


def test_a_server_that_ignores_ranges(tmp_path: Path, site: Site, address: str) -> None:
    """It sends all of it again."""
    partial = tmp_path / ".programs.partial"
    partial.mkdir()
    (partial / f"{API_SERVER}.part").write_bytes(site.programs[API_SERVER][:1000])

    def whole(handler: Handler, content: bytes) -> None:
        handler.head(200, len(content))
        handler.wfile.write(content)

    site.answers[api_server(site)] = whole
    assert (get(tmp_path, address) / API_SERVER).read_bytes() == site.programs[API_SERVER]


@pytest.mark.parametrize("before", [b"x" * 1000, b"x" * 300_000, b"x" * 400_000], ids=len)
def test_what_is_there_of_something_else_is_not_used(tmp_path: Path, site: Site, address: str, before: bytes) -> None:
    """It is downloaded once more, from its beginning."""
    partial = tmp_path / ".programs.partial"
    partial.mkdir()
    (partial / f"{API_SERVER}.part").write_bytes(before)

    assert (get(tmp_path, address) / API_SERVER).read_bytes() == site.programs[API_SERVER]


def test_wrong_bytes_are_refused(tmp_path: Path, site: Site, address: str) -> None:
    """And not kept."""
    site.content[api_server(site)] = program("other")

    assert "has the checksum" in refused(tmp_path, address)
    assert not (tmp_path / ".programs.partial" / f"{API_SERVER}.part").exists()


def test_a_wrong_length_is_refused(tmp_path: Path, site: Site, address: str) -> None:
    """Shorter than what follows, or longer."""

    def shorter(handler: Handler, content: bytes) -> None:
        handler.head(200, 1000)
        handler.wfile.write(content)

    def longer(handler: Handler, content: bytes) -> None:
        if handler.headers["range"]:
            handler.head(416, 0)
        else:
            handler.head(200, len(content) + 1)
            handler.wfile.write(content)

    site.answers[api_server(site)] = shorter
    assert "has the checksum" in refused(tmp_path, address)
    site.answers[api_server(site)] = longer
    get(tmp_path, address)  # all of it has come


def test_another_part_than_was_asked_for_is_refused(tmp_path: Path, site: Site, address: str) -> None:
    """Whatever the server says it is."""
    partial = tmp_path / ".programs.partial"
    partial.mkdir()
    (partial / f"{API_SERVER}.part").write_bytes(b"x" * 1000)
    for said in ("", "bytes 999-1000/300000", "bytes 1-2"):
        site.answers[api_server(site)] = lambda handler, content, said=said: handler.head(206, 0, said)  # type: ignore[misc]

        assert "another part" in refused(tmp_path, address)


def test_what_is_too_large_is_refused(
    tmp_path: Path, site: Site, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it says so or sends without end."""
    monkeypatch.setattr("gpuplane.sandbox.controlplane.releases.MAX_PROGRAM_BYTES", 1 << 20)

    def endless(handler: Handler, content: bytes) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(bytes(1 << 16))
        except OSError:
            pass

    site.answers[api_server(site)] = lambda handler, content: handler.head(200, 1 << 40)
    assert "try again" in refused(tmp_path, address)  # it has said much and sent nothing
    site.answers[api_server(site)] = endless
    assert "larger than 1 MB" in refused(tmp_path, address)
    assert not (tmp_path / ".programs.partial" / f"{API_SERVER}.part").exists()


def test_one_who_sends_drop_by_drop_has_his_time(
    tmp_path: Path, site: Site, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each drop is in time, and all of it is not."""
    monkeypatch.setattr(fetching, "SECONDS_FOR_FILE", 0.2)

    def drip(handler: Handler, content: bytes) -> None:
        handler.head(200, len(content))
        try:
            for at in range(len(content)):
                handler.wfile.write(content[at : at + 1])
                time.sleep(0.01)
        except OSError:
            pass

    site.answers[api_server(site)] = drip
    assert "takes longer than" in refused(tmp_path, address)


@pytest.mark.parametrize("name", [API_SERVER, f"{API_SERVER}.sha256"])
def test_redirects(tmp_path: Path, site: Site, address: str, name: str) -> None:
    """Those of a release are followed, a circle is not."""
    path = f"{site.folder}/{name}"
    site.content["/elsewhere"] = site.content[path]
    site.answers[path] = lambda handler, content: handler.head(302, 0, location=path)
    assert path in refused(tmp_path, address)

    site.answers[path] = lambda handler, content: handler.head(302, 0, location="/elsewhere")
    get(tmp_path, address)
    assert ("/elsewhere", None) in site.asked


@pytest.mark.parametrize(
    "body", [b"", b"0" * 63, b"<html>", b"0" * 64 + b"  other", b"a" * 100_000, b"\xff\0"], ids=len
)
def test_what_is_no_checksum_is_refused(tmp_path: Path, site: Site, address: str, body: bytes) -> None:
    """Nothing is downloaded without one."""
    site.content[f"{api_server(site)}.sha256"] = body

    assert "checksum" in refused(tmp_path, address)
    assert api_server(site) not in [path for path, _ in site.asked]


def test_a_release_that_is_not_there(tmp_path: Path, site: Site, address: str) -> None:
    """With its address and the status."""
    del site.content[f"{api_server(site)}.sha256"]
    assert refused(tmp_path, address) == f"{address}{api_server(site)}.sha256: the server answers 404"


def test_no_server(tmp_path: Path) -> None:
    """Nobody listens there."""
    assert "refused" in refused(tmp_path, "http://127.0.0.1:9")


@pytest.mark.parametrize("machine", [183, 3, 0])
def test_a_program_of_another_machine_is_refused(tmp_path: Path, machine: int) -> None:
    """Though its checksum is right: somebody has put it in the wrong place."""
    with serve(Site(machine)) as address:
        assert "is no program for linux/amd64" in refused(tmp_path, address)
    with serve(Site(183, "arm64")) as address:
        get(tmp_path, address, "arm64")  # for another machine than this one


@pytest.mark.parametrize("how", [{"type": b"2", "linkname": "/etc/passwd"}, {"type": b"5"}], ids=["link", "directory"])
def test_an_archive_with_something_else(tmp_path: Path, site: Site, address: str, how: dict[str, object]) -> None:
    """A link, a directory, or nothing of that name: no file is made outside."""
    member = f"{Path(site.archive).name.removesuffix('.tar.gz')}/etcd"
    site.put_archive(member, b"", **how)
    assert "is no program" in refused(tmp_path, address)

    site.put_archive("../etcd", site.programs[ETCD])
    assert f"has no {member}" in refused(tmp_path, address)


def test_what_is_no_archive(tmp_path: Path, site: Site, address: str) -> None:
    """With a checksum that is right."""
    for content in (b"", b"text", site.content[site.archive][:-1000]):
        site.content[site.archive] = content
        sums = f"{hashlib.sha256(content).hexdigest()}  {Path(site.archive).name}\n"
        site.content[f"{site.etcd_folder}/SHA256SUMS"] = sums.encode()
        assert "etcd" in refused(tmp_path, address)


def test_a_full_disk(tmp_path: Path, site: Site, address: str) -> None:
    """The error is the system's; what is there goes on when there is room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # as small files as a full disk takes
    try:
        with pytest.raises(OSError, match="File too large"):
            get(tmp_path, address)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert not (tmp_path / "programs").exists()
    get(tmp_path, address)


def test_a_fetch_that_is_killed_goes_on(tmp_path: Path, site: Site, address: str) -> None:
    """SIGKILL, half way."""
    half, go_on = threading.Event(), threading.Event()

    def slow(handler: Handler, content: bytes) -> None:
        handler.head(200, len(content))
        handler.wfile.write(content[:100_000])
        half.set()
        go_on.wait(60)

    site.answers[api_server(site)] = slow
    command = [
        sys.executable,
        "-m",
        "gpuplane",
        "sandbox",
        "fetch",
        "--arch",
        "amd64",
        "--version",
        VERSION,
        "--mirror",
    ]
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PATH": "/usr/bin"}
    with subprocess.Popen([*command, address], env=environment, stderr=subprocess.DEVNULL) as process:
        assert half.wait(60)
        part = tmp_path / f"gpuplane/control-plane/.{VERSION}-linux-amd64.partial/{API_SERVER}.part"
        until = time.monotonic() + 60
        while not (part.exists() and part.stat().st_size) and time.monotonic() < until:
            time.sleep(0.01)
        second = subprocess.run([*command, address], env=environment, capture_output=True, text=True, check=False)
        process.send_signal(signal.SIGKILL)
    go_on.set()
    del site.answers[api_server(site)]
    third = subprocess.run([*command, address, "--json"], env=environment, capture_output=True, text=True, check=False)

    assert (second.returncode, "another fetch" in second.stderr) == (1, True)  # two at once
    assert third.returncode == 0, third.stderr
    assert '"downloaded":true' in third.stdout.replace(" ", "")
    assert any(asked is not None for path, asked in site.asked if path == api_server(site))


def test_what_is_there_is_not_downloaded_again(tmp_path: Path, site: Site, address: str) -> None:
    """Not even asked for."""
    directory = get(tmp_path, address)
    before = len(site.asked)

    assert fetch(downloads(VERSION, "amd64", address), directory, "amd64") == []
    assert len(site.asked) == before
    assert [path.name for path in tmp_path.iterdir()] == ["programs"]


def test_a_directory_that_has_something_else_is_left_alone(tmp_path: Path, site: Site, address: str) -> None:
    """An empty one is used."""
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs/mine").touch()
    with pytest.raises(FetchError, match="is not empty"):
        get(tmp_path, address)
    assert site.asked == []

    (tmp_path / "programs/mine").unlink()
    get(tmp_path, address)
