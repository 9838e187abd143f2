"""The hook: how long a container's start waits for it, compared with a static program that does nothing.

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

from bench.reference import nothing
from bench.row import Row
from tests.node.host.hook.build import build, missing
from tests.node.host.hook.elf import compatible
from tests.node.host.hook.test_params import prepared
from tests.node.host.hook.world import COMPAT, NAMESPACE, Container

GOLDEN = Path(__file__).parents[1] / "tests/node/core/containers/golden/dgx-h100.golden"
RUNS, LIBRARIES = 50, 500


async def hook() -> list[Row]:
    """a container's start, until its hook has run"""
    if os.geteuid() != 0 or missing():
        print("hook: needs root, a compiler and make; not measured", file=sys.stderr)
        return []
    return await asyncio.to_thread(_measure)


def _measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="gpuplane-bench-") as directory:
        container = Container(Path(directory), build(Path(directory)))
        reference = nothing(Path(directory))
        container.put(f"{COMPAT}/libcuda.so.590.44.01", compatible("13.1", [535, 550, 570, 580, 590]))
        container.library("/usr/lib64/libone.so.0", "libone.so")
        for each in range(1, LIBRARIES):
            container.put(f"/usr/lib64/libone.so.{each}", container.inside("/usr/lib64/libone.so.0").read_bytes())
        for line in arguments():
            if line.startswith("--link"):  # ldconfig removes links that lead nowhere
                target, link = line.partition("=")[2].split("::")
                container.put(os.path.normpath(f"{Path(link).parent}/{target}"))
        alone, least = _times(container, reference, f"mount --bind {reference} /sbin/ldconfig")
        whole, _ = _times(container, reference, "")
    links = sum(each.startswith("--link") for each in arguments())
    most, median, once = max(alone), statistics.median(alone), statistics.median(least)
    how = (
        f"max {most * 1e3:.2f} ms over {once * 1e3:.2f} ms, {RUNS} starts in turns, median {median * 1e3:.1f} ms: "
        f"{links} links, compatibility, parameters; "
        f"with ldconfig over {LIBRARIES} libraries {statistics.median(whole) * 1e3:.1f} ms"
    )
    what = "the hook of a container's start, without ldconfig's own run / a program that does nothing"
    return [Row(what, most / once, 50, "×", how)]


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


def _times(container: Container, reference: Path, prepare: str) -> tuple[list[float], list[float]]:
    """Of many starts, the hook's and the reference's, in a mount namespace in which a shell command was run."""
    script = f'{prepared(container)}\n{prepare}\nexec "$@"'
    given = [str(each) for each in (container.hook, reference, container.root)]
    command = [*NAMESPACE, script, "sh", sys.executable, "-m", "bench.hook", *given]
    ended = subprocess.run(command, check=True, capture_output=True, timeout=100)
    times, least = json.loads(ended.stdout)
    return times, least


def _starts(hook: str, reference: str, root: str) -> tuple[list[float], list[float]]:
    """Seconds that each start takes, of the two in turns; links and mounts are as if each were the first."""
    times, least = list[float](), list[float]()
    state = json.dumps({"root": root}).encode()
    links = [each.split("::")[1] for each in arguments() if each.startswith("--link")]
    for _ in range(RUNS):
        for program, taken in ((reference, least), (hook, times)):
            command, began = [program, "create-container", *arguments()], time.perf_counter()
            subprocess.run(command, input=state, env={"GPUPLANE_HOOK": "1"}, check=True)
            taken.append(time.perf_counter() - began)
        subprocess.run(["umount", f"{root}/proc/driver/nvidia/params"], check=True)
        for link in links:
            Path(root + link).unlink()
    return times, least


if __name__ == "__main__":
    print(json.dumps(_starts(*sys.argv[1:])))
