"""`gpuplane driver`: the driver let go of and taken up again, with a real agent and the embedded kubelet."""

import re
from pathlib import Path

from gpuplane.sandbox.kubelet import Kubelet
from tests.agent.test_process import GPU, Place, gpuplane


async def test_what_holds_is_said(tmp_path: Path) -> None:
    """For how long, in the words that drains have; that one release takes the place of another; that there was none."""
    place = Place(tmp_path)
    state = ("--state-dir", place.state)
    async with Kubelet(place.kubelet) as kubelet, place.agent() as agent:
        await kubelet.until_capacity(GPU, 4, 4)
        assert await gpuplane("driver", "take", *state) == (0, "The driver was not let go of.\n")

        first = await gpuplane("driver", "release", "--for", "2h", "--why", "firm\x1bware", *state)
        assert first == (0, "The driver is let go of for 2 h: firm\ufffdware. No device node is open.\n")
        _, second = await gpuplane("driver", "release", "--for", "90s", "--why", "reset", *state)
        said = "The driver is let go of for 1 min 30 s: reset. No device node is open. It was to be for another "
        assert second.startswith(said), second
        assert re.fullmatch(r"(2 h|1 h \d+ min): firm\ufffdware\.\n", second.removeprefix(said)), second

        _, health = await gpuplane("inspect", "health", *state)
        node = health.splitlines()[0].split("\t")
        assert (node[0], node[4]) == ("node", "not-looked: the driver is let go of: reset")
        assert node[5].startswith("gpuplane driver take, or its time, in "), node

        assert await gpuplane("driver", "take", *state) == (0, "The driver is taken up again.\n")
        await kubelet.until_capacity(GPU, 4, 4)
        await agent.until_says("4 GPUs (0 to 3): available again")
        warnings = [line for line in agent.log if "4 GPUs (0 to 3): not available" in line]
        assert len(warnings) == 1, warnings
