"""The names of containers by kubelet's directories of logs."""

import json
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuplane.kubernetes.podref import ContainerId, PodRef
from gpuplane.node.core.telemetry.cgroups import container_of
from gpuplane.node.host import podrecords
from gpuplane.node.host.podrecords import PodRecords

RECORDED = json.loads((Path(__file__).parent / "podrecords-1.36.json").read_text())
"""What a real node with Kubernetes 1.36.2 had in /var/log at one moment, and what its runtime knew then."""
UID, ID = "76acaf17-8883-41ef-8dbd-7e32f6f22459", "a9" * 32


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(podrecords, "READ_INTERVAL", 0.0)


def record(root: Path, namespace: str, pod: str, uid: str, container: str, id: str) -> None:
    """What kubelet makes for a container."""
    directory = root / f"var/log/pods/{namespace}_{pod}_{uid}/{container}"
    directory.mkdir(parents=True, exist_ok=True)
    link(root, f"{pod}_{namespace}_{container}-{id}.log", directory / "0.log")


def link(root: Path, name: str, target: Path = Path("/nowhere")) -> None:
    """A link in /var/log/containers."""
    (root / "var/log/containers").mkdir(parents=True, exist_ok=True)
    (root / "var/log/containers" / name).symlink_to(target)


def test_the_containers_of_a_real_node(tmp_path: Path) -> None:
    """Each that the runtime knows, those that were restarted and those that ended included."""
    for name, target in RECORDED["containers"].items():
        link(tmp_path, name, Path(target))
    for name, containers in RECORDED["pods"].items():
        for container in containers:
            (tmp_path / "var/log/pods" / name / container).mkdir(parents=True)
    expected = {
        ContainerId(each["uid"], each["id"]): PodRef(
            namespace=each["namespace"], name=each["pod"], uid=each["uid"], container=each["name"]
        )
        for each in RECORDED["cri"]
    }

    assert len(expected) == 8
    assert PodRecords(tmp_path).names(expected.keys()) == expected


def test_what_the_two_directories_say_has_to_agree(tmp_path: Path) -> None:
    """A name that only one of them has is taken; a link that names another pod than the UID is none."""
    records = PodRecords(tmp_path)
    asked = ContainerId(UID, ID)
    assert records.names([asked]) == {}
    link(tmp_path, f"train_team_main-{ID}.log")
    assert records.names([asked]) == {asked: PodRef(namespace="team", name="train", uid=UID, container="main")}
    (tmp_path / f"var/log/pods/team_other_{UID}/main").mkdir(parents=True)
    assert PodRecords(tmp_path).names([asked]) == {}


def test_a_name_that_was_cut_off_is_found_by_the_pod(tmp_path: Path) -> None:
    """Kubelet cuts a link's name off at 255 characters: then the id is not whole."""
    pod = "p" * 200
    (tmp_path / f"var/log/pods/team_{pod}_{UID}/main").mkdir(parents=True)
    link(tmp_path, f"{pod}_team_main-{ID}"[:251] + ".log")
    [found] = PodRecords(tmp_path).names([ContainerId(UID, ID)]).values()

    assert (found.name, found.container) == (pod, "main")
    (tmp_path / f"var/log/pods/team_{pod}_{UID}/side").mkdir()
    [found] = PodRecords(tmp_path).names([ContainerId(UID, ID)]).values()
    assert (found.name, found.container) == (pod, ""), "it may be either"


@pytest.mark.parametrize(
    "name",
    [
        f"train_team_main-{ID[:-1]}.log",
        f"train_team_main-{ID}.log.gz",
        f"train_main-{ID}.log",
        f"train_team_x_main-{ID}.log",
        f"../train_team_main-{ID}.log".replace("/", "%2f"),
        f"TRAIN_team_main-{ID}.log",
        f"train_team_main-{ID}.log\n",
    ],
)
def test_what_kubelet_would_not_write_names_nothing(tmp_path: Path, name: str) -> None:
    """Nobody else should write there; what is there all the same is left alone."""
    link(tmp_path, name)

    assert PodRecords(tmp_path).names([ContainerId(UID, ID)]) == {}


def test_a_process_that_is_seen_before_its_link_gets_its_container_later(tmp_path: Path) -> None:
    """Kubelet makes a pod's directory before a container is created, and the link after it has started."""
    (tmp_path / f"var/log/pods/team_train_{UID}/main").mkdir(parents=True)
    (tmp_path / f"var/log/pods/team_train_{UID}/side").mkdir(parents=True)
    records, asked = PodRecords(tmp_path), ContainerId(UID, ID)
    assert records.names([asked]) == {asked: PodRef(namespace="team", name="train", uid=UID)}
    assert not records.has_all([asked])
    link(tmp_path, f"train_team_main-{ID}.log")
    assert records.names([asked]) == {asked: PodRef(namespace="team", name="train", uid=UID, container="main")}
    assert records.has_all([asked])


def test_records_that_contradict_themselves_name_nothing(tmp_path: Path) -> None:
    """Two names for one id, or two for one UID: which is right cannot be told."""
    asked = ContainerId(UID, ID)
    link(tmp_path, f"train_team_main-{ID}.log")
    link(tmp_path, f"other_team_main-{ID}.log")
    assert PodRecords(tmp_path).names([asked]) == {}
    other = ContainerId(UID.replace("7", "8"), "b" * 64)
    for pod in ("one", "two"):
        (tmp_path / f"var/log/pods/team_{pod}_{other.pod_uid}/main").mkdir(parents=True)
    assert PodRecords(tmp_path).names([other]) == {}


def test_the_directory_of_a_pod_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    """Whoever may write in /var/log cannot have other directories listed."""
    (tmp_path / "elsewhere/main").mkdir(parents=True)
    (tmp_path / "var/log/pods").mkdir(parents=True)
    (tmp_path / f"var/log/pods/team_train_{UID}").symlink_to(tmp_path / "elsewhere")
    asked = ContainerId(UID, ID)

    assert PodRecords(tmp_path).names([asked]) == {asked: PodRef(namespace="team", name="train", uid=UID)}


def test_the_directories_are_read_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while every container is known; else once a second, and more rarely where nothing new is found."""
    reads: list[str] = []
    now = [1000.0]

    def list_nothing(_: PodRecords, directory: str) -> Iterator[str]:
        reads.append(directory)
        return iter(())

    monkeypatch.setattr(PodRecords, "_list", list_nothing)
    monkeypatch.setattr(podrecords, "READ_INTERVAL", 1.0)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    records, asked = PodRecords(tmp_path), ContainerId(UID, ID)
    for _ in range(600):
        records.names([asked])
        now[0] += 1.0
    assert 2 * 10 <= len(reads) <= 2 * 20, "a process of a container without records is looked for each minute"
    reads.clear()
    records.names([asked, ContainerId(UID, "b" * 64)])
    assert len(reads) == 2, "a new one is looked for at once"
    records._known = {asked: PodRef(namespace="team", name="train", container="main")}
    now[0] += 3600.0
    records.names([asked])
    assert len(reads) == 2


HISTORIES = st.lists(
    st.tuples(st.sampled_from(("create", "restart", "delete")), st.integers(0, 4), st.booleans()), max_size=25
)


@given(HISTORIES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_container_gets_the_name_of_another(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, int, bool]]
) -> None:
    """Whatever pods come, go, come again under the same name, and restart: cgroup v1 and v2, by both drivers."""
    root = tmp_path_factory.mktemp("n")
    records, running = PodRecords(root), dict[int, tuple[str, str, str]]()
    for number, (what, pod, is_systemd) in enumerate(history, 1):
        uid, id = f"{number:08x}-0000-4000-8000-00000000000{pod}", f"{number:064x}"
        if what == "create" and pod not in running:
            running[pod] = uid, id, _cgroup(uid, id, is_systemd)
            record(root, "team", f"pod-{pod}", uid, "main", id)
        elif what == "restart" and pod in running:
            uid = running[pod][0]
            running[pod] = uid, id, _cgroup(uid, id, is_systemd)
            record(root, "team", f"pod-{pod}", uid, "main", id)
        elif what == "delete":
            running.pop(pod, None)  # kubelet removes its directories later, or never
        asked = {each: container_of([path]) for each, (_, _, path) in running.items()}
        names = records.names([each for each in asked.values() if each is not None])
        for each, container in asked.items():
            assert container is not None
            assert names[container].name == f"pod-{each}"
        assert len(names) == len(running)


def _cgroup(uid: str, id: str, is_systemd: bool) -> str:
    if is_systemd:
        return f"/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/cri-containerd-{id}.scope"
    return f"/kubepods/burstable/pod{uid}/{id}"


def test_memory_does_not_grow_with_pods_that_came_and_went(tmp_path: Path) -> None:
    """Only those that are asked for are remembered."""
    records = PodRecords(tmp_path)
    record(tmp_path, "team", "train", UID, "main", ID)
    tracemalloc.start()
    for number in range(2_000):
        records.names([ContainerId(UID, ID), ContainerId(UID, f"{number:064x}")])
        if number == 100:
            before = tracemalloc.get_traced_memory()[0]
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    assert grown < 100_000
