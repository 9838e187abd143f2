"""Read the command line of `gpuplane agent`, and run the agent.

It takes NVIDIA's flags and environment variables beside its own (`node/core/config/flags.py`), so that a manifest
written for their plugin starts it.
"""

import argparse
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gpuplane import __version__
from gpuplane.base.strict import InvalidInput
from gpuplane.cli.commands.agent.arguments import Choice, Parser
from gpuplane.cli.commands.agent.driverroot import DriverRoot, contained, driver_root, seen
from gpuplane.cli.kit.machine import NVML, hardware, other_sources
from gpuplane.cli.kit.messages import os_error_text, print_error
from gpuplane.cli.kit.servingflags import SERVING_FLAGS, read_serving_options
from gpuplane.node.agent.configure import Source
from gpuplane.node.agent.main import Options, run
from gpuplane.node.agent.rights import lacks, useless
from gpuplane.node.core.commands import USUAL_CDI_DIR, USUAL_STATE_DIR
from gpuplane.node.core.config.flags import FLAG_BY_NAME
from gpuplane.node.core.config.flagvalues import add_arguments, flag_text_or_default, flag_texts_by_name, use_two_dashes
from gpuplane.node.core.config.resolve import resolve_settings
from gpuplane.node.core.dra.names import POD_UID
from gpuplane.node.hardware.described.profiles import UnknownMachine
from gpuplane.node.host.cdi.hook import HOOK_PATH
from gpuplane.node.host.kernellog import has_host_pids
from gpuplane.service import logs
from gpuplane.service.serving import serve

if TYPE_CHECKING:
    import socket
    import subprocess


def main(argv: list[str], first_driver: "tuple[subprocess.Popen[bytes], socket.socket] | None" = None) -> NoReturn:
    """Run until a signal, and end the process. `first_driver`: a driver's process that waits for its options."""
    parser = agent_parser()
    arguments = parser.parsed(use_two_dashes(argv))
    flags, environment = flag_texts_by_name(vars(arguments)), os.environ
    logs.set_up(arguments.log_format)
    try:
        stated = resolve_settings(None, "the command line", flags, environment)  # the file may get better, these do not
        if stated.stand_ins:
            _refuse_stand_ins_of_real_devices(arguments.machine, arguments.devices)
        root = driver_root(flags, environment, contained(environment))
        options = _options(arguments, flags, environment, root)
        gpus = hardware(
            arguments.machine,
            driver_root=root.path,
            root_chosen=root.why,
            host_root=arguments.host_root,
            host_pids=has_host_pids(),
            own_uuids_of_node=flag_text_or_default("node-name", flags, environment) if stated.stand_ins else "",
            first=first_driver,
        )
        sources = [gpus, *other_sources(arguments.machine, arguments.devices, arguments.host_root)]
    except (InvalidInput, UnknownMachine, ValueError) as error:
        parser.error(str(error))
    except FileNotFoundError as error:
        print_error(os_error_text(error))
        sys.exit(1)
    if problem := useless(options):
        print_error(problem)
        sys.exit(1)
    if problem := lacks(options):
        logging.getLogger("gpuplane").warning("%s", problem)
    serve(run(options, sources))


def agent_parser() -> Parser:
    """The options: our own, and those of NVIDIA's device plugin."""
    parser = Parser("gpuplane agent", "Run the node agent until a signal stops it.")
    parser.add_argument("-V", "--version", action="version", version=f"gpuplane {__version__}")
    own = parser.add_argument_group("the agent")
    own.add_argument(
        "--machine",
        default=NVML,
        metavar="nvml|PROFILE|FILE",
        help="nvml for the real machine, a machine file, or the name of a profile; default nvml",
    )
    own.add_argument(
        "--devices", default="", metavar="FILE",
        help="the agent also offers the devices of this file (a machine file with nothing but devices), and checks "
             "that their device nodes exist under --host-root; default: the devices of a machine file, as described",
    )  # fmt: skip
    own.add_argument(
        "--kubelet-root",
        type=Path,
        metavar="DIR",
        help="kubelet's directory; default: the directory of --kubelet-socket",
    )
    own.add_argument(
        "--state-dir", type=Path, default=Path(USUAL_STATE_DIR), metavar="DIR", help="default /var/lib/gpuplane"
    )
    for flag in SERVING_FLAGS:
        own.add_argument(f"--{flag.name}", metavar=flag.metavar, help=flag.help)
    own.add_argument(
        "--dcgm-counters", metavar="FILE",
        help="the DCGM fields that are shown, in the format of dcgm-exporter's -f; environment "
             "DCGM_EXPORTER_COLLECTORS; default: the list of dcgm-exporter",
    )  # fmt: skip
    own.add_argument(
        "--host-root", type=Path, default=Path("/"), metavar="DIR", help="the root of /sys, /proc and /dev; default /"
    )
    own.add_argument(
        "--kernel-log", metavar="FILE",
        help="the agent reads XIDs from this kernel log; empty: no log; default: dev/kmsg under --host-root, or no "
             "log with a machine file",
    )  # fmt: skip
    own.add_argument(
        "--device-nodes", metavar="DIR",
        help="the agent creates missing device nodes and links in /dev under this root; empty: it creates none; "
             "default: --host-root, or none with a machine file",
    )  # fmt: skip
    own.add_argument(
        "--cdi-dir", metavar="DIR",
        help=f"the agent writes CDI specifications to this directory; empty: it writes none; default: "
             f"{USUAL_CDI_DIR}, or none with a machine file",
    )  # fmt: skip
    own.add_argument(
        "--hook-path", type=Path, default=HOOK_PATH, metavar="FILE",
        help="the path of the program that CDI hooks run; the path must be the same on the host and for the "
             f"agent; default {HOOK_PATH}",
    )  # fmt: skip
    own.add_argument(
        "--log-format",
        type=Choice("text", "json"),
        metavar="text|json",
        default="text",
        help="the format of the log on standard error; default text",
    )
    own.add_argument(
        "--config-name",
        metavar="NAME",
        help="the name of the configuration to use; it replaces the name in the Node's label",
    )
    own.add_argument(
        "--pod-uid",
        metavar="UID",
        help="the UID of the agent's pod, so that a new agent may start beside the old one in an upgrade: the DRA "
             "sockets are named after it; environment POD_UID; default: sockets with fixed names",
    )  # fmt: skip
    theirs = parser.add_argument_group(
        "options of NVIDIA's device plugin", "The command line has priority over the environment."
    )
    add_arguments(theirs.add_argument)
    return parser


def _options(
    arguments: argparse.Namespace, flags: Mapping[str, str], environment: Mapping[str, str], root: DriverRoot
) -> Options:
    def flag_text(name: str) -> str:
        return flag_text_or_default(name, flags, environment)

    socket = flag_text("kubelet-socket")
    config = flag_text("config-file") or flag_text("config-file-srcdir")
    source = Source(
        path=Path(config) if config else None,
        name=arguments.config_name,
        default=flag_text("default-config"),
        fallbacks=tuple(filter(None, flag_text("fallback-strategies").split(","))) or Source().fallbacks,
        asks=bool(flag_text("node-name")),
        flags=flags,
        environment=dict(environment),
    )
    return Options(
        kubelet_root=_kubelet_root(arguments.kubelet_root, socket),
        registers=bool(socket),
        state_dir=arguments.state_dir,
        config=source,
        node_name=flag_text("node-name"),
        pod_uid=_pod_uid(arguments.pod_uid, environment),
        node_label=flag_text("node-label"),
        kubeconfig=Path(flag_text("kubeconfig")) if flag_text("kubeconfig") else None,
        pages=read_serving_options(
            lambda name: vars(arguments)[name.replace("-", "_")], environment, flag_text("kubeconfig")
        ),
        counters=_counters(arguments.dcgm_counters, environment),
        host_name=flag_text("node-name") or os.uname().nodename,
        records_root=arguments.host_root,
        kernel_log=_kernel_log(arguments.kernel_log, arguments.machine, arguments.host_root),
        kernel_pids=arguments.machine != NVML or has_host_pids(),
        device_nodes=_device_nodes(arguments.device_nodes, arguments.machine, arguments.host_root),
        cdi_dir=_cdi_dir(arguments.cdi_dir, arguments.machine),
        hook=arguments.hook_path.absolute(),
        driver_root=seen(root, arguments.machine),
    )


def _refuse_stand_ins_of_real_devices(machine: str, devices_file: str) -> None:
    """Raises ValueError where a container would get /dev/null for a device that this node has."""
    if machine == NVML or devices_file:
        raise ValueError(
            "--stand-ins (environment STAND_INS) is for a described machine, which has no devices: use --machine "
            "PROFILE or FILE, without --devices"
        )


def _kubelet_root(root: Path | None, socket: str) -> Path:
    """Kubelet's directory, by what is said of it or of its socket. Raises ValueError where these are two."""
    default = FLAG_BY_NAME["kubelet-socket"].default
    beside = Path(socket or default).parent.parent
    if root is not None and socket not in ("", default) and root.absolute() != beside.absolute():
        raise ValueError(
            f"--kubelet-root {root} and --kubelet-socket {socket} are in different directories: leave one out"
        )
    return root or beside


def _kernel_log(given: str | None, machine: str, host_root: Path) -> Path | None:
    if given is None:
        return host_root / "dev/kmsg" if machine == NVML else None
    return Path(given) if given else None


def _device_nodes(given: str | None, machine: str, host_root: Path) -> Path | None:
    """Nothing is made on the machine that only plays another."""
    if given is None:
        return host_root if machine == NVML else None
    return Path(given) if given else None


def _cdi_dir(given: str | None, machine: str) -> Path | None:
    """What is not there is nothing for this node's container runtime."""
    if given is None:
        return Path(USUAL_CDI_DIR) if machine == NVML else None
    return Path(given).absolute() if given else None


def _counters(given: str | None, environment: Mapping[str, str]) -> Path | None:
    path = environment.get("DCGM_EXPORTER_COLLECTORS", "") if given is None else given
    return Path(path) if path else None


def _pod_uid(given: str | None, environment: Mapping[str, str]) -> str:
    uid = environment.get("POD_UID", "") if given is None else given
    if uid and not POD_UID.fullmatch(uid):
        raise ValueError(f"--pod-uid (environment POD_UID) must be the UID of a pod, a UUID, not {uid!r}")
    return uid
