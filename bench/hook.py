"""The hook: how long a container's start waits for it.

The links are a DGX H100's, as its golden table has them; the image has compatibility libraries and 500 others. What
ldconfig takes is its own: a program that does nothing stands in for it, in a mount namespace, and once it runs itself.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.row import Row
from tests.host.hook.build import build, missing
from tests.host.hook.elf import compatible
from tests.host.hook.test_params import prepared
from tests.host.hook.world import COMPAT, NAMESPACE, Container

GOLDEN = Path(__file__).parents[1] / "tests/core/containers/golden/dgx-h100.golden"
RUNS, LIBRARIES = 50, 500
NOTHING = "int main(void) { return 0; }"


async def hook() -> list[Row]:
    """a container's start, until its hook has run"""
    if os.geteuid() != 0 or missing():
        print("hook: needs root, a compiler and make; not measured", file=sys.stderr)
        return []
    return await asyncio.to_thread(_measure)


def _measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="gpuplane-bench-") as directory:
        container = Container(Path(directory), build(Path(directory)))
        nothing = Path(directory) / "nothing"
        subprocess.run(["cc", "-static", "-x", "c", "-", "-o", nothing], input=NOTHING, text=True, check=True)
        container.put(f"{COMPAT}/libcuda.so.590.44.01", compatible("13.1", [535, 550, 570, 580, 590]))
        container.library("/usr/lib64/libone.so.0", "libone.so")
        for each in range(1, LIBRARIES):
            container.put(f"/usr/lib64/libone.so.{each}", container.inside("/usr/lib64/libone.so.0").read_bytes())
        for line in arguments():
            if line.startswith("--link"):  # ldconfig removes links that lead nowhere
                target, link = line.partition("=")[2].split("::")
                container.put(os.path.normpath(f"{Path(link).parent}/{target}"))
        alone = _times(container, f"mount --bind {nothing} /sbin/ldconfig")
        whole = statistics.median(_times(container, "")) * 1e3
    links = sum(each.startswith("--link") for each in arguments())
    how = (
        f"{RUNS} starts, median {statistics.median(alone) * 1e3:.1f} ms: {links} links, compatibility, parameters; "
        f"with ldconfig over {LIBRARIES} libraries {whole:.1f} ms"
    )
    return [Row("the hook of a container's start, without ldconfig's own run", max(alone) * 1e3, 30, "ms", how)]


def arguments() -> list[str]:
    """What the golden table of a DGX H100 has the hook do."""
    made = ["--params", f"--compat={COMPAT}", "--driver=570.172.08", "--cuda=12.8"]
    for line in GOLDEN.read_text().splitlines():
        match line.split():
            case ["all", "link", link, target]:
                made.append(f"--link={target}::{link}")
            case ["all", "folder", folder]:
                made.append(f"--folder={folder}")
    return made


def _times(container: Container, prepare: str) -> list[float]:
    """Of many starts, in a mount namespace in which a shell command was run."""
    script = f'{prepared(container)}\n{prepare}\nexec "$@"'
    command = [*NAMESPACE, script, "sh", sys.executable, "-m", "bench.hook", str(container.hook), str(container.root)]
    ended = subprocess.run(command, check=True, capture_output=True, timeout=100)
    return [float(each) for each in json.loads(ended.stdout)]


def _starts(program: str, root: str) -> list[float]:
    """Seconds that each start takes; links and mounts are as if each were the first."""
    times = []
    state = json.dumps({"root": root}).encode()
    links = [each.split("::")[1] for each in arguments() if each.startswith("--link")]
    for _ in range(RUNS):
        began = time.perf_counter()
        subprocess.run([program, "create-container", *arguments()], input=state, env={"GPUPLANE_HOOK": "1"}, check=True)
        times.append(time.perf_counter() - began)
        subprocess.run(["umount", f"{root}/proc/driver/nvidia/params"], check=True)
        for link in links:
            Path(root + link).unlink()
    return times


if __name__ == "__main__":
    print(json.dumps(_starts(*sys.argv[1:])))
