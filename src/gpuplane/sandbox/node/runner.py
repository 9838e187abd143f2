"""What a container of a played node runs: our own program as a process, or nothing that is played."""

import asyncio
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from gpuplane.node.model.cdi import ContainerEdits
from gpuplane.sandbox.controlplane.network import Network
from gpuplane.sandbox.controlplane.processes import Child, start_child
from gpuplane.sandbox.kubeconfig import kubeconfig_document
from gpuplane.sandbox.kubelet.devices import KubeletError
from gpuplane.sandbox.node.containers import PodRun, Started, describe_container
from gpuplane.sandbox.node.environment import Fetch, Variable, container_environment
from gpuplane.sandbox.node.objects import Json, PodObject
from gpuplane.sandbox.node.ownimage import (
    SERVICE_ACCOUNT,
    HostPaths,
    Site,
    is_own_image,
    make_process,
    make_rootfs,
    own_command,
)
from gpuplane.sandbox.node.programs import PlayedProgram, played_command
from gpuplane.sandbox.node.volumes import MakeToken, Volumes

SECONDS_BETWEEN_WRITES = 10.0
"""Between two looks at the objects that files of volumes are made of; 60 and more on a node."""
IMAGE_ENVIRONMENT = {"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"}


class Runner:
    """Starts the programs of one node."""

    def __init__(
        self, name: str, address: str, paths: HostPaths, network: Network, api_url: str, fetch: Fetch,
        make_token: MakeToken,
    ) -> None:  # fmt: skip
        self._name, self._address, self._paths, self._network = name, address, paths, network
        self._api_url, self._fetch, self._make_token = api_url, fetch, make_token
        self._volumes: dict[str, Volumes] = {}  # by the pod's UID

    async def start(self, run: PodRun, container: Json, edits: ContainerEdits, log: Path) -> Started:
        """Start a container's program, or play it. Raises KubeletError."""
        values = self._node_values(run)
        environment = await container_environment(run.pod, container, values, self._fetch)
        words = own_command(container) if is_own_image(container["image"]) else None
        if words is None:
            lines = describe_container(run, container["name"], environment, edits)
            log.write_text("".join(f"{line}\n" for line in lines))
            return Started(PlayedProgram(played_command(container, run.runs_on(container["name"]))))
        return Started(await self._start_process(run, container, words, environment, log), self.listen_address(run))

    def forget(self, run: PodRun) -> None:
        """A pod has ended: nothing of it is left, tokens and Secrets least of all."""
        self._volumes.pop(run.pod.metadata.uid, None)
        shutil.rmtree(self._directory(run), ignore_errors=True)
        shutil.rmtree(run.log_directory, ignore_errors=True)

    def _volumes_of(self, run: PodRun) -> Volumes:
        """The volumes of a pod, which follow their objects from now on."""
        uid = run.pod.metadata.uid
        if uid not in self._volumes:
            self._volumes[uid] = self._make_volumes(run, self._make_token)
            run.spawn(_keep_written(self._volumes[uid]))
        return self._volumes[uid]

    def listen_address(self, run: PodRun) -> str:
        """Where what runs in a pod listens on this machine."""
        return self._network.loopback(run.facts.address)

    async def _start_process(
        self, run: PodRun, container: Json, words: list[str], environment: Mapping[str, Variable], log: Path
    ) -> "ProcessProgram":
        directory = self._directory(run)
        rootfs = directory / container["name"]
        sources = await self._volumes_of(run).write()
        mounts = {
            each["mountPath"]: sources[each["name"]] / (each.get("subPath") or "")
            for each in container.get("volumeMounts") or ()
        }
        rootfs.mkdir(parents=True, exist_ok=True)
        make_rootfs(rootfs, mounts)
        site = Site(self._paths, self.listen_address(run), rootfs, directory / "kubeconfig")
        if SERVICE_ACCOUNT in mounts:
            site.kubeconfig.write_bytes(self._kubeconfig(run, mounts[SERVICE_ACCOUNT]))
            site.kubeconfig.chmod(0o600)
        command, variables = make_process(words, environment, mounts, site)
        try:
            child = await start_child(command, log=log, environment=IMAGE_ENVIRONMENT | variables, directory=rootfs)
        except OSError as error:
            raise KubeletError(f"failed to start containerd task: {error}") from None
        return ProcessProgram(child)

    async def set_up_volumes(self, run: PodRun) -> None:
        """Make the volumes of a pod. A played one needs no token. Raises KubeletError."""
        if any(is_own_image(each["image"]) for each in run.pod.containers()):
            await self._volumes_of(run).write()
        else:
            await self._make_volumes(run, _no_token).write()

    def _make_volumes(self, run: PodRun, make_token: MakeToken) -> Volumes:
        directory, values = self._directory(run) / "volumes", self._node_values(run)
        return Volumes(run.pod, directory, self._paths, values, self._fetch, make_token)

    def _directory(self, run: PodRun) -> Path:
        return self._paths.run / run.pod.metadata.uid

    def _node_values(self, run: PodRun) -> Mapping[str, str]:
        return {
            "spec.nodeName": self._name,
            "status.hostIP": self._address,
            "status.hostIPs": self._address,
            "status.podIP": run.facts.address,
            "status.podIPs": run.facts.address,
        }

    def _kubeconfig(self, run: PodRun, account: Path) -> bytes:
        """What a pod finds the API server by; a program in a cluster finds the same in its service account."""
        cluster = {"server": self._api_url, "certificate-authority": str(account / "ca.crt")}
        user = {"tokenFile": str(account / "token")}
        return msgspec.json.encode(kubeconfig_document("pod", cluster, user, run.pod.metadata.namespace))


async def _no_token(pod: PodObject, audience: str, seconds: int) -> str:
    return ""


async def _keep_written(volumes: Volumes) -> None:
    """Follow what objects a pod's files are made of, and renew its tokens, while it runs."""
    while True:
        await asyncio.sleep(SECONDS_BETWEEN_WRITES)
        with suppress(KubeletError):  # files stay as they are while an object is gone, or the API server
            await volumes.write()


class ProcessProgram:
    """A process of this machine."""

    def __init__(self, child: Child) -> None:
        self._child = child

    async def wait(self) -> int:
        """Its exit status; 128 and a signal's number for one that ended it."""
        status = await self._child.wait()
        return 128 - status if status < 0 else status

    def kill(self) -> None:
        """End it at once, as by a fault."""
        self._child.kill()

    async def stop(self, grace_seconds: float) -> None:
        """SIGTERM, and SIGKILL after the grace period."""
        await self._child.stop(grace_seconds)
