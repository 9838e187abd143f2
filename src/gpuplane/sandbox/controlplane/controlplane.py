"""A control plane from its start to its end.

- etcd and the API server start at once; the others as soon as the API server answers anything at all, for the
  controller manager waits for it for ten seconds and no longer.
- It is ready when a pod would be taken: a namespace has its service account.
- The API server and whoever asks it are killed in the end: all that they know is etcd's, which ends by SIGTERM.
- A cluster that is kept starts again in its directory, however it ended. One that is not kept has its data elsewhere,
  and etcd does not wait for the disk.
"""

import asyncio
import json
import os
import shutil
import ssl
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from gpuplane.base import files
from gpuplane.base.text import clip
from gpuplane.sandbox.controlplane.arguments import (
    ADMIN,
    CLIENTS,
    EGRESS_SOCKET,
    SERVER_NAMES,
    SERVICE_ADDRESS,
    SOCKETS,
    Place,
    certificate_file,
    configurations,
    kubeconfig_file,
    program_arguments,
)
from gpuplane.sandbox.controlplane.certificates import Authority, KeyPair, write_file
from gpuplane.sandbox.controlplane.kubeconfig import make_kubeconfig
from gpuplane.sandbox.controlplane.network import EgressProxy, Network, find_port
from gpuplane.sandbox.controlplane.programs import (
    API_SERVER,
    CONTROLLER_MANAGER,
    ETCD,
    SCHEDULER,
    parse_version,
    program_version,
)
from gpuplane.sandbox.controlplane.supervision import POLL_INTERVAL, ProgramFails, Supervisor

USUAL_PORT = 6443
DATA, TEMPORARY_DATA, VERSIONS_FILE = "etcd", "etcd-temporary", "etcd-versions.json"
FIRST_SERVICE_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"
"""Without it no pod is taken."""
FREE_BYTES = 512 << 20
"""Bytes that a disk needs: etcd begins with two files of 64 MB."""
SECONDS_TO_START, SECONDS_TO_ANSWER = 120.0, 10.0
NO_ANSWER = 0


class ControlPlaneError(Exception):
    """The control plane cannot be started. The message says why, and what to do."""


class ControlPlane:
    """`async with ControlPlane(directory, programs, authority, network) as control_plane`: it is ready then.

    Raises ControlPlaneError, ProgramsMissing and OSError. `programs`: their directory. `authority`: that of DIR/pki.
    `kept`: the cluster survives our end, in DIR/etcd. `port`: of the API server; 0 for one that is free. `report`: is
    told what has ended and is started again. `api_server`: more flags of the API server.
    """

    def __init__(
        self,
        directory: Path,
        programs: Path,
        authority: Authority,
        network: Network,
        *,
        kept: bool = True,
        port: int = 0,
        report: Callable[[str], None] = lambda text: None,
        api_server: Sequence[str] = (),
    ) -> None:
        self.directory, self.programs, self.authority, self.network = directory.absolute(), programs, authority, network
        self.port = port
        self.kubeconfig = self.directory / "kubeconfig"
        """The administrator's: a file."""
        self.version = ""
        """Of Kubernetes: "1.36.2"."""
        self._kept, self._report, self._api_server = kept, report, api_server
        self._stack = AsyncExitStack()

    @property
    def url(self) -> str:
        """Of the API server."""
        return f"https://{self.network.control_plane}:{self.port}"

    @property
    def pids(self) -> dict[str, int]:
        """Each program that runs → its process number."""
        return self._programs.pids

    def kubeconfig_for(self, user: str, groups: Iterable[str] = ()) -> bytes:
        """A kubeconfig of this user."""
        return self._kubeconfig(self.authority.issue_client(user, groups))

    async def restart(self, name: str) -> None:
        """Kill a program, and wait until it runs again and the API server is ready."""
        async with asyncio.timeout(SECONDS_TO_START):
            await self._programs.restart(name)
            await self._until(lambda status: status == 200, "/readyz")

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self, stack: AsyncExitStack) -> None:
        self._prepare_directory()
        self.port = self._choose_port()
        versions = {name: await program_version(self.programs, name) for name in (ETCD, API_SERVER)}
        if self._kept:
            self._check_versions(versions)
        else:
            self._remove_temporary_data()
            stack.callback(self._remove_temporary_data)
        self._write_files()
        self._tls = self._client_context()
        await stack.enter_async_context(EgressProxy(self.directory / EGRESS_SOCKET, self.network))
        self._programs = Supervisor(self.directory, self._commands(), self._report)
        stack.push_async_callback(self._programs.end, gently=(ETCD,))
        await self._start_programs()
        self.version = versions[API_SERVER]
        if self._kept:
            files.replace(self.directory / VERSIONS_FILE, json.dumps(versions).encode())

    async def _start_programs(self) -> None:
        try:
            async with asyncio.timeout(SECONDS_TO_START):
                await self._programs.start(ETCD, API_SERVER)
                await self._until(lambda status: status != NO_ANSWER, "/readyz")
                await self._programs.start(CONTROLLER_MANAGER, SCHEDULER)
                await self._until(lambda status: status == 200, "/readyz")
                await self._until(lambda status: status == 200, FIRST_SERVICE_ACCOUNT)
        except TimeoutError:
            reason = f"the control plane is not ready after {SECONDS_TO_START:g} s: see {self.directory / 'logs'}"
            raise ControlPlaneError(reason) from None
        except ProgramFails as error:
            raise ControlPlaneError(str(error)) from None
        self._programs.is_ready = True

    def _commands(self) -> dict[str, list[str]]:
        place = Place(self.network.control_plane, self.port, f"10.{self.network.number}.0.1")
        data = DATA if self._kept else TEMPORARY_DATA
        all = program_arguments(place, data, kept=self._kept, api_server=self._api_server)
        return {name: [os.fspath(self.programs.absolute() / name), *each] for name, each in all.items()}

    def _choose_port(self) -> int:
        address = self.network.control_plane
        if self.port and find_port(address, self.port) != self.port:
            raise ControlPlaneError(
                f"port {self.port} of {address} is taken or not ours: choose another one, or 0 for one that is free"
            )
        return self.port or find_port(address, USUAL_PORT)

    def _prepare_directory(self) -> None:
        """Raises ControlPlaneError and OSError."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if weak := files.untrusted_owner_or_mode(self.directory.stat(), on_the_way=False):
            reason = "others could change the cluster. Choose a directory that only you can change"
            raise ControlPlaneError(f"{self.directory} {weak}: {reason}")
        for name in ("pki", "logs"):
            (self.directory / name).mkdir(mode=0o700, exist_ok=True)
        if (free := shutil.disk_usage(self.directory).free) < FREE_BYTES:
            raise ControlPlaneError(
                f"the disk of {self.directory} has {free >> 20} MB left, and a cluster needs {FREE_BYTES >> 20} MB: "
                "free some, or choose another directory"
            )

    def _check_versions(self, versions: dict[str, str]) -> None:
        """What a newer program has written an older one may not read. Raises ControlPlaneError."""
        try:
            before = json.loads(files.read(self.directory / VERSIONS_FILE))
            newer = [name for name in versions if _minor(before[name]) > _minor(versions[name])]
        except (OSError, ValueError, KeyError, TypeError):
            return  # nothing is known of it
        for name in newer:
            raise ControlPlaneError(
                f"{self.directory / DATA} was written by {name} {clip(before[name])}, and {self.programs} has "
                f"{versions[name]}: use programs that are not older, or another directory, or remove {DATA} in it"
            )

    def _remove_temporary_data(self) -> None:
        shutil.rmtree(self.directory / TEMPORARY_DATA, ignore_errors=True)

    def _write_files(self) -> None:
        """All but what the authority keeps is made anew. Raises OSError."""
        addresses = "127.0.0.1", SERVICE_ADDRESS, self.network.control_plane
        pairs = {user: self.authority.issue_client(user, groups) for user, groups in CLIENTS.items()}
        written = {kubeconfig_file(user): self._kubeconfig(pair) for user, pair in pairs.items()}
        for name, pair in {**pairs, API_SERVER: self.authority.issue_server(SERVER_NAMES, addresses)}.items():
            written[certificate_file(name)] = pair.certificate + pair.key
        written |= {**configurations(), self.kubeconfig.name: self._kubeconfig(pairs[ADMIN])}
        for name, content in written.items():
            write_file(self.directory / name, content, sync=False)
        for name in SOCKETS:
            (self.directory / name).unlink(missing_ok=True)

    def _kubeconfig(self, pair: KeyPair) -> bytes:
        return make_kubeconfig(self.url, self.authority.certificate, pair)

    def _client_context(self) -> ssl.SSLContext:
        found = ssl.create_default_context(cadata=self.authority.certificate.decode())
        found.load_cert_chain(self.directory / certificate_file(ADMIN))
        return found

    async def _until(self, is_well: Callable[[int], bool], path: str) -> None:
        """Raises ProgramFails."""
        while not is_well(await self._status(path)):
            self._programs.check()
            await asyncio.sleep(POLL_INTERVAL)

    async def _status(self, path: str) -> int:
        """Of the API server's answer; `NO_ANSWER` without one."""
        try:
            async with asyncio.timeout(SECONDS_TO_ANSWER):
                address = self.network.control_plane
                reader, writer = await asyncio.open_connection(address, self.port, ssl=self._tls)
                try:
                    writer.write(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
                    return int((await reader.readline()).split()[1])
                finally:
                    writer.transport.abort()
        except (OSError, ValueError, IndexError):  # a TimeoutError too
            return NO_ANSWER


def _minor(version: str) -> tuple[int, ...]:
    return parse_version(version)[:2]
