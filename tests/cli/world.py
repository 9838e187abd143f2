"""What the table's commands find: files good and wrong, and an agent with its kubelet for each user."""

import json
import os
import shutil
import tempfile
import time
from pathlib import Path

from gpuplane.node.hardware.described.profiles import find_machine_file
from tests.cli.terminals import NOBODY, Terminals
from tests.cluster.reading.small import objects

DATA = Path(__file__).parents[1]
GPUS = "gpus:\n" + "".join(f"- {{index: {n}, uuid: GPU-{n}, model: NVIDIA A100{{}}}}\n" for n in range(8))
LAYOUTS = (
    "version: v1\nmig-configs:\n  off:\n  - {devices: all, mig-enabled: false}\n  seven:\n"
    "  - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}\n  wrong:\n"
    "  - {devices: all, mig-enabled: true, mig-devices: {1g.99gb: 1}}\n"
)
NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{n},64000,262144,4,T4\n" for n in range(3))
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\n" + "".join(
    f"p{n},1000,1000,{gpus},{milli},0,{10 + n}\n"
    for n, (gpus, milli) in enumerate([(1, 810), (1, 470), (1, 320), (1, 1000), (2, 1000), (4, 1000), (0, 0)] * 4)
)
CLUSTER = json.dumps({"kind": "List", "items": objects()})
ROOMY = "- {{index: {n}, uuid: GPU-{n}, memory_mib: 81920}}\n"
NAMES = {
    **{name: name for name in ("specs", "wrong", "ours", "closed", "programs")},
    **{name: f"{name}.yaml" for name in ("machine", "two", "small", "config", "unreadable")},
    "runtime": "config.toml",
    "layouts": "layouts.yaml",
    "saved": "saved.json",
    "nodes": "nodes.csv",
    "pods": "pods.csv",
    "cluster": "cluster.json",
}
"""What rows may name, besides {here}, {fresh} and {state}, and where it is below the folder."""
PATIENCE = 60.0
"""Seconds."""
LOST = ", faults: [{code: gpu-lost, message: fell off the bus}]"


class World:
    """In a folder. Everybody may read it, but what is `closed`."""

    def __init__(self, here: Path, terminals: Terminals) -> None:
        self.here, self._terminals = here, terminals
        here.chmod(0o755)
        self._files()
        users = {os.geteuid(), NOBODY} if os.geteuid() == 0 else {os.geteuid()}
        self.state = {user: self._agent(user) for user in users}

    def words(self, text: str, user: int) -> list[str]:
        """The command line of a row, with what its names stand for; {fresh} is an empty folder of the user's."""
        fresh = Path(tempfile.mkdtemp(dir=self.here))
        os.chown(fresh, user, -1)
        names = {"here": self.here, "fresh": fresh, "state": self.state[user]}
        names |= {name: self.here / path for name, path in NAMES.items()}
        return [each.format(**names) for each in text.split()]

    def _files(self) -> None:
        for name in ("specs", "wrong", "ours", "closed"):
            (self.here / name).mkdir()
        shutil.copy(find_machine_file("dgx-a100"), self.here / "machine.yaml")
        shutil.copy(DATA / "node/core/containers/registry/testdata/nvidia.yaml", self.here / "specs/nvidia.yaml")
        shutil.copy(DATA / "node/core/runtimes/files/kubeadm-1.7.toml", self.here / "config.toml")
        (self.here / "programs").mkdir()
        for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"):
            (self.here / f"programs/{name}").touch()
        texts = {
            "two.yaml": "".join(
                ("gpus:\n", *(f"- {{index: {n}, uuid: GPU-{n}, memory_mib: 81920}}\n" for n in range(2)))
            ),
            "small.yaml": "gpus:\n- {index: 0, uuid: GPU-0}\n- {index: 1, uuid: GPU-1}\n",
            "unreadable.yaml": "flags: [",
            "config.yaml": "version: v1\n",
            "layouts.yaml": LAYOUTS,
            "saved.json": '{"Version": "v1", "MigState": {"Devices": []}}',
            "crio.conf": "",
            "nodes.csv": NODES,
            "pods.csv": PODS,
            "cluster.json": CLUSTER,
            "none.json": '{"kind": "List", "items": []}',
            "wrong/bad.yaml": "cdiVersion: 0.3.0\nkind: nvidia.com/gpu\ndevices:\n- {name: '0', containerEdits: {}}\n",
            "placement.yaml": "policy: fgd\nexpected:\n- {gpus: 4, cpuMilli: 4000}\n",
            "wrong/placement.yaml": "policy: best\n",
            "wrong/config.yaml": "version: v1\nflags: {migStratgy: none}\n",
            "ours/k8s.device-plugin.nvidia.com-gpu.json": "{}",
            "closed/secret.yaml": "version: [",
        }
        for name, text in texts.items():
            (self.here / name).write_text(text)
        (self.here / "unreadable.yaml").chmod(0o600)
        (self.here / "closed/secret.yaml").chmod(0o600)
        (self.here / "closed").chmod(0o700)

    def _agent(self, user: int) -> Path:
        """The state directory of an agent that this user has; GPU 7 is lost."""
        place = self.here / str(user)
        place.mkdir()
        (place / "machine.yaml").write_text(GPUS.replace("{}", "", 7).replace("{}", LOST))
        (place / "config.yaml").write_text("version: v1\nhealth: {probePeriod: 200ms}\n")
        os.chown(place, user, -1)
        words = f"--machine {place}/machine.yaml --config {place}/config.yaml --kubelet-root {place}/k"
        for command in (f"sandbox kubelet --root {place}/k --no-input", f"agent {words} --state-dir {place}/s"):
            log = f"{place}-{command.split()[0]}.log"
            self._terminals.run(*command.split(), user=user, log=log)
        end = time.monotonic() + PATIENCE
        while "8 devices offered" not in Path(log).read_text():
            assert time.monotonic() < end, Path(log).read_text()
            time.sleep(0.05)
        return place / "s"
