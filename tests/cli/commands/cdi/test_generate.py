"""`gpuplane cdi generate`: NVIDIA's flags as they are meant here, where the file goes, what is said beside it."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from gpuplane.cli.commands.cdi import command
from gpuplane.cli.commands.cdi.asked import OPTIONS
from gpuplane.node.core.containers.cdi.validation import all_spec_problems
from gpuplane.node.model.cdi import Spec
from tests.golden import Golden

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
DRIVER = f"""
driver:
  version: 580.95.05
  cuda: "13.0"
  files:
    libraries:
      - {{path: {LIBRARIES}/libcuda.so.580.95.05, soname: libcuda.so.1, symlinks: [libcuda.so, libcuda.so.1]}}
      - {{path: {LIBRARIES}/libnvidia-ptxjitcompiler.so.580.95.05, soname: libnvidia-ptxjitcompiler.so.1}}
"""
MACHINE = """
shared_nodes: [/dev/nvidiactl, /dev/nvidia-uvm]
device_node_stats:
  /dev/nvidiactl: {major: 195, minor: 255}
  /dev/nvidia-uvm: {major: 510, minor: 0}
  /dev/nvidia0: {major: 195, minor: 0}
  /dev/nvidia1: {major: 195, minor: 1}
  /dev/nvidia-caps/nvidia-cap30: {major: 237, minor: 30}
  /dev/nvidia-caps/nvidia-cap31: {major: 237, minor: 31}
gpus:
  - {index: 0, uuid: GPU-0, minor: 0, device_nodes: [/dev/nvidia0]}
  - index: 1
    uuid: GPU-1
    minor: 1
    device_nodes: [/dev/nvidia1]
    mig:
      enabled: true
      devices:
        - uuid: MIG-1
          profile: 3g.40gb
          gpu_instance: 2
          device_nodes: [/dev/nvidia-caps/nvidia-cap30, /dev/nvidia-caps/nvidia-cap31]
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A described machine: a GPU, and one with a MIG device."""
    path = tmp_path / "machine.yaml"
    path.write_text(DRIVER + MACHINE)
    return path


def generate(*words: object, env: dict[str, str] | None = None) -> Result:
    """What the command does."""
    return CliRunner().invoke(command, ["generate", *map(str, words)], env=env)


def written(result: Result) -> Spec:
    """The specification on standard output, which is a good one."""
    assert result.exit_code == 0, result.output
    spec = msgspec.convert(yaml.safe_load(result.stdout), Spec)
    assert not [*all_spec_problems(spec)]
    return spec


def names(spec: Spec) -> list[str]:
    """Its devices, sorted."""
    return sorted(device.name for device in spec.devices)


def notes(result: Result) -> str:
    """What was said beside the specification."""
    return " ".join(result.stderr.split())


def test_what_nvidias_command_would_write(machine: Path) -> None:
    """Every device by index and by UUID, and `all` of them, of kind nvidia.com/gpu, as YAML."""
    result = generate("--machine", machine)
    spec = written(result)

    assert result.stdout.startswith("---\ncdiVersion: ")
    assert (spec.kind, spec.cdi_version) == ("nvidia.com/gpu", "0.5.0")
    assert names(spec) == ["0", "1:0", "GPU-0", "MIG-1", "all"]
    devices = {device.name: device.container_edits for device in spec.devices}
    assert devices["0"] == devices["GPU-0"]
    assert {node.path for node in devices["1:0"].device_nodes} == {
        "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31", "/dev/nvidia1"
    }  # fmt: skip
    assert len(devices["all"].device_nodes) == 4
    assert "GPU-1" in notes(result)


@pytest.mark.parametrize(
    ("words", "env", "kind", "devices"),
    [
        (["--device-name-strategy=uuid"], {}, "nvidia.com/gpu", ["GPU-0", "MIG-1", "all"]),
        (["--device-name-strategy", "type-index", "--no-all-device"], {}, "nvidia.com/gpu", ["gpu0", "mig1:0"]),
        ([], {"DEVICE_NAME_STRATEGIES": "uuid,type-index"}, "nvidia.com/gpu",
         ["GPU-0", "MIG-1", "all", "gpu0", "mig1:0"]),
        (["--vendor=example.com", "--class=gpus"], {}, "example.com/gpus", ["0", "1:0", "GPU-0", "MIG-1", "all"]),
        (["--cdi-class=gpus"], {"VENDOR": "example.com", "CLASS": "other"}, "example.com/gpus",
         ["0", "1:0", "GPU-0", "MIG-1", "all"]),
        (["--device-id=0"], {}, "nvidia.com/gpu", ["0", "GPU-0", "all"]),
        (["--device", "MIG-1,0", "--no-all-device"], {}, "nvidia.com/gpu", ["0", "1:0", "GPU-0", "MIG-1"]),
        (["--device-id=none"], {}, "nvidia.com/gpu", ["none"]),
        (["--device-ids=all"], {"NO_ALL_DEVICE": "true"}, "nvidia.com/gpu", ["0", "1:0", "GPU-0", "MIG-1"]),
        (["--mode=NVML", "--device-id=0"], {}, "nvidia.com/gpu", ["0", "GPU-0", "all"]),
        (["--discovery-mode=management"], {}, "management.nvidia.com/gpu", ["all"]),
        ([], {"MODE": "management", "CLASS": "nodes"}, "management.nvidia.com/nodes", ["all"]),
    ],
)  # fmt: skip
def test_names_kinds_and_devices(
    words: list[str], env: dict[str, str], kind: str, devices: list[str], machine: Path
) -> None:
    """As NVIDIA's flags and environment variables say; a flag comes before its variable."""
    variables = {f"NVIDIA_CTK_CDI_GENERATE_{name}": value for name, value in env.items()}
    spec = written(generate("--machine", machine, *words, env=variables))

    assert (spec.kind, names(spec)) == (kind, devices)


@pytest.mark.parametrize(
    ("words", "path", "args"),
    [
        (["--hook=nvidia"], "/usr/bin/nvidia-cdi-hook", ["nvidia-cdi-hook"]),
        (["--nvidia-ctk-path=nvidia-ctk"], "/usr/bin/nvidia-ctk", ["nvidia-ctk", "hook"]),
        (["--nvidia-cdi-hook-path=/x/nvidia-cdi-hook"], "/x/nvidia-cdi-hook", ["nvidia-cdi-hook"]),
        (["--hook=gpuplane", "--hook-path=/x/hook"], "/x/hook", ["hook", "create-container"]),
        (["--hook-path=/bin/sh"], "/bin/sh", ["sh", "create-container"]),
        (["--hook=none", "--hook-path=/bin/sh"], "", []),
        (["--hook-path=/nowhere"], "", []),
        (["--hook=nvidia", "--disable-hook=all"], "", []),
    ],
)
def test_which_program_a_start_calls(
    words: list[str], path: str, args: list[str], machine: Path, golden: Golden
) -> None:
    """NVIDIA's where it is named, ours where it is, else none, and mounts stand in for it."""
    result = generate("--machine", machine, *words)
    edits = written(result).container_edits

    assert {hook.path for hook in edits.hooks} == ({path} if path else set())
    assert all(list(hook.args[: len(args)]) == args and hook.env for hook in edits.hooks)
    aliases = [mount for mount in edits.mounts if mount.container_path == f"{LIBRARIES}/libcuda.so.1"]
    hookless = not path and "--disable-hook=all" not in words
    assert bool(aliases) == hookless
    golden(notes(result), " ".join(words))
    searched = any(each in words for each in ("--hook=nvidia", "--nvidia-ctk-path=nvidia-ctk"))
    assert ("/usr/bin/nvidia-c" in notes(result)) == searched


def test_one_of_nvidias_hooks(machine: Path) -> None:
    """All are disabled, and one is enabled again."""
    edits = written(
        generate("--machine", machine, "--hook=nvidia", "--disable-hook=all", "--enable-hook=update-ldcache")
    ).container_edits

    assert [hook.args[1] for hook in edits.hooks] == ["update-ldcache"]


@pytest.mark.parametrize(
    ("words", "subject"),
    [
        (["--enable-hook=chmod"], "--enable-hook chmod"),
        (["--enable-hook=chmod", "--hook=nvidia"], "--enable-hook chmod"),
        (["--enable-hook=create-soname-symlinks"], "--enable-hook create-soname-symlinks"),
        (["--enable-hook=update-application-profile", "--hook=gpuplane"],
         "--enable-hook update-application-profile"),
        (["--enable-hook=update-application-profile", "--hook=nvidia"], ""),
        (["--enable-hook=update-application-profile", "--hook=nvidia", "--mode=management"],
         "--enable-hook update-application-profile"),
        (["--enable-hook=create-symlinks", "--hook=none"],
         "--enable-hook create-symlinks"),
        (["--disable-hook=create-symlinks", "--hook=none"], "--disable-hook"),
        (["--disable-hook=create-symlinks", "--hook=gpuplane"], ""),
        (["--disable-hook=chmod", "--hook=gpuplane"], ""),
        (["--hook-path=/x", "--hook=nvidia"], "--hook-path"),
        (["--hook-path=/x", "--hook=none"], "--hook-path"),
        (["--nvidia-ctk-path=/x", "--hook=gpuplane"], "--nvidia-cdi-hook-path"),
        (["--nvidia-ctk-path=/x", "--hook-path=/y"], "--hook-path"),
        (["--device-name-strategy=uuid", "--mode=management"],
         "--device-name-strategy"),
        (["--no-all-device", "--mode=management"], "--no-all-device"),
        (["--hook=nvidia", "--mode=gdrcopy"], "--hook"),
        (["--disable-hook=all", "--mode=gdrcopy"], "--disable-hook"),
        (["--enable-hook=create-symlinks", "--mode=gdrcopy"], "--enable-hook"),
        (["--nvidia-cdi-hook-path=/x", "--mode=gdrcopy"], "--nvidia-cdi-hook-path"),
        (["--driver-root-ctr-path=/x"], "--driver-root-ctr-path"),
        (["--ldconfig-path=/x"], "--ldconfig-path"),
        (["--csv.file=/x"], "--csv.file"),
        (["--feature-flag=enable-coherent-annotations"], "flag enable-coherent-annotations"),
        (["--device-name-strategy=uuid", "--no-all-device", "--hook=nvidia"], ""),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_told(words: list[str], subject: str, machine: Path, golden: Golden) -> None:
    """Once, on standard error, with the reason; and nothing is said of what has one."""
    (machine.parent / "rdma").write_text(machine.read_text().replace("nodes: [", "nodes: [/dev/gdrdrv, ", 1))
    notes = generate("--machine", machine.parent / "rdma", *words).stderr.splitlines()
    idle = [each for each in notes if "no effect" in each or "changes nothing" in each]

    assert len(idle) == bool(subject), notes
    for note in idle:
        assert subject in note
        golden(note, " ".join(words))


def test_paths_on_the_host(machine: Path) -> None:
    """Below the driver root and the root of the nodes, which is the driver root where nothing else is said."""
    words = ("--machine", machine, "--device-id=0")
    both = written(generate(*words, env={"NVIDIA_CTK_DRIVER_ROOT": "/run/nvidia/driver"}))
    apart = written(generate(*words, "--driver-root=/run/nvidia/driver", "--dev-root=/"))

    for spec in (both, apart):
        assert {mount.host_path[: len("/run/nvidia/driver/")] for mount in spec.container_edits.mounts} == {
            "/run/nvidia/driver/"
        }
    assert both.devices[0].container_edits.device_nodes[0].host_path == "/run/nvidia/driver/dev/nvidia0"
    assert apart.devices[0].container_edits.device_nodes[0].host_path == ""


@pytest.mark.parametrize(
    ("name", "form", "becomes"),
    [
        ("gpu.json", None, "gpu.json"),
        ("gpu.yaml", None, "gpu.yaml"),
        ("gpu.yml", None, "gpu.yml.yaml"),
        ("gpu", "json", "gpu.json"),
        ("gpu", None, "gpu.yaml"),
        ("new/folder/gpu.yaml", "JSON", "new/folder/gpu.yaml"),
    ],
)
def test_the_file(name: str, form: str | None, becomes: str, machine: Path, tmp_path: Path, golden: Golden) -> None:
    """Its format is that of its name, which ends as runtimes want it; all may read it; its folder is made."""
    asked = ["--format", form] if form else []
    hook = ("--hook-path", tmp_path / "no-hook")  # not the one that may be installed here
    result = generate("--machine", machine, "--output", tmp_path / "cdi" / name, *hook, *asked)
    path = tmp_path / "cdi" / becomes

    assert result.exit_code == 0
    assert result.stdout == ""
    golden(result.stderr, f"{name}, {form}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [each for each in (tmp_path / "cdi").rglob("*") if each.is_file()] == [path]
    text = path.read_text()
    assert text.startswith("{") == ((form or path.suffix[1:]).lower() == "json")
    assert sorted(device["name"] for device in yaml.safe_load(text)["devices"]) == ["0", "1:0", "GPU-0", "MIG-1", "all"]


def test_a_file_that_is_there_is_replaced_as_a_whole(machine: Path, tmp_path: Path) -> None:
    """A link is replaced, and what it led to stays as it was."""
    other, path = tmp_path / "other", tmp_path / "gpu.json"
    other.write_text("kept")
    path.symlink_to(other)
    result = generate("--machine", machine, env={"NVIDIA_CTK_CDI_OUTPUT_FILE_PATH": str(path)})

    assert result.exit_code == 0
    assert not path.is_symlink()
    assert json.loads(path.read_text())["kind"] == "nvidia.com/gpu"
    assert other.read_text() == "kept"


def test_a_file_that_somebody_else_could_replace_is_told(machine: Path, tmp_path: Path) -> None:
    """Whoever runs this decides; a sticky folder keeps what is in it."""
    (place := tmp_path / "place").mkdir()
    for mode, told in ((0o757, True), (0o1777, False)):
        place.chmod(mode)
        result = generate("--machine", machine, "--output", place / "gpu.json")
        assert result.exit_code == 0
        assert (f" {place} " in result.stderr) == told


def test_a_folder_that_cannot_be(machine: Path, tmp_path: Path) -> None:
    """Is said with its path, and nothing is left behind."""
    (tmp_path / "file").write_text("")
    result = generate("--machine", machine, "--output", tmp_path / "file/gpu.json")

    assert result.exit_code == 1
    assert re.search(r"^Error: .*/file/gpu\.json: (Not a directory|File exists)$", result.stderr, re.MULTILINE)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "machine.yaml"]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--mode=csv"], 2),
        (["--mode=wsl"], 2),
        (["--mode=nvnl"], 2),
        (["--device-name-strategy=indx"], 2),
        (["--feature-flag=disable-ipc"], 2),
        (["--enable-hook=all"], 2),
        (["--disable-hooks=update-ldcach"], 2),
        (["--config-search-path=/etc"], 2),
        (["--class=-"], 2),
        (["--vendor=x"], 2),
        (["--device-id=7"], 1),
        (["--mode=gds"], 1),
        (["--output=/"], 2),
        (["--driver-root=driver"], 2),
        (["--dev-root=."], 2),
        (["--hook=gpuplane", "--hook-path=hook"], 2),
        (["--machine=nowhere"], 1),
    ],
)
def test_what_is_refused(words: list[str], status: int, machine: Path, tmp_path: Path, golden: Golden) -> None:
    """With the reason, and nothing is written."""
    result = generate("--machine", machine, "--output", tmp_path / "out.json", *words)

    assert (result.exit_code, result.stdout) == (status, "")
    assert result.stderr
    golden(result.stderr, " ".join(words))
    assert not (tmp_path / "out.json").exists()


def test_what_has_no_effect_says_so(machine: Path) -> None:
    """NVIDIA's options of other modes are taken, and change nothing."""
    idle = ["--ldconfig-path=/sbin/ldconfig", "--csv.file=/x.csv",
            "--csv.ignore-pattern=x", "--csv.compat-container-root=/y"]  # fmt: skip
    result = generate("--machine", machine, *idle)

    assert written(result) == written(generate("--machine", machine))
    for each in idle:
        assert f"Note: {each.partition('=')[0]} " in result.stderr


def test_no_driver_file_is_found(tmp_path: Path, golden: Golden) -> None:
    """Without libcuda there is nothing that a container could use: why, once for all GPUs, and nothing is written."""
    missing = "/usr/lib64/libcuda.so.580.95.05: Permission denied"
    (tmp_path / "machine.yaml").write_text(f"driver: {{version: 580.95.05, files_error: '{missing}'}}\n{MACHINE}")
    result = generate("--machine", tmp_path / "machine.yaml")

    assert (result.exit_code, result.stdout) == (1, "")

    assert missing in result.stderr
    golden(result.stderr)


def test_no_driver(tmp_path: Path) -> None:
    """Is said as the driver's process says it, with the library that is not there."""
    result = generate("--driver-root", tmp_path)

    assert (result.exit_code, result.stdout) == (1, "")
    assert "libnvidia-ml.so.1" in result.stderr
    nowhere = generate("--driver-root", tmp_path / "nowhere")
    assert (nowhere.exit_code, nowhere.stdout) == (1, "")
    assert f"{tmp_path}/nowhere" in nowhere.stderr


def test_the_table_of_options_is_nvidias() -> None:
    """Every flag and variable of their command (nvidia-container-toolkit 1.20), with its other names."""
    theirs: dict[str, Any] = {
        "--config-search-path": "NVIDIA_CTK_CDI_GENERATE_CONFIG_SEARCH_PATHS",
        "--output": "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH",
        "--format": "NVIDIA_CTK_CDI_GENERATE_OUTPUT_FORMAT",
        "--mode --discovery-mode": "NVIDIA_CTK_CDI_GENERATE_MODE",
        "--dev-root": "NVIDIA_CTK_DEV_ROOT",
        "--device-name-strategy": "NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES",
        "--driver-root": "NVIDIA_CTK_DRIVER_ROOT",
        "--library-search-path": "NVIDIA_CTK_CDI_GENERATE_LIBRARY_SEARCH_PATHS",
        "--nvidia-cdi-hook-path --nvidia-ctk-path": "NVIDIA_CTK_CDI_HOOK_PATH",
        "--ldconfig-path": "NVIDIA_CTK_CDI_GENERATE_LDCONFIG_PATH",
        "--vendor --cdi-vendor": "NVIDIA_CTK_CDI_GENERATE_VENDOR",
        "--class --cdi-class": "NVIDIA_CTK_CDI_GENERATE_CLASS",
        "--csv.file": "NVIDIA_CTK_CDI_GENERATE_CSV_FILES",
        "--csv.ignore-pattern": "NVIDIA_CTK_CDI_GENERATE_CSV_IGNORE_PATTERNS",
        "--csv.compat-container-root": "NVIDIA_CTK_CDI_GENERATE_CSV_CONTAINER_COMPAT_ROOT",
        "--disable-hook --disable-hooks": "NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS",
        "--enable-hook --enable-hooks": "NVIDIA_CTK_CDI_GENERATE_ENABLED_HOOKS",
        "--feature-flag --feature-flags": "NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS",
        "--no-all-device": "NVIDIA_CTK_CDI_GENERATE_NO_ALL_DEVICE",
        "--device-id --device-ids --device --devices": "NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS",
    }
    assert {names: variable for names, variable, _, _ in OPTIONS if variable} == theirs
