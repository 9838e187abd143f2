"""`gpuplane driver`: the driver let go of and taken up again, with a real agent and the embedded kubelet."""

import json
import re
from pathlib import Path

from gpuplane.sandbox.kubelet import Kubelet
from tests.golden import Golden
from tests.node.agent.test_process import GPU, Place, gpuplane


async def test_what_holds_is_said(tmp_path: Path, golden: Golden) -> None:
    """For how long, in the words that drains have; that one release takes the place of another; that there was none."""
    place = Place(tmp_path)
    state = ("--state-dir", place.state)
    async with Kubelet(place.kubelet) as kubelet, place.agent() as agent:
        await kubelet.until_capacity(GPU, 4, 4)
        for case, words in (
            ("taken back though nobody has it", ("resume",)),
            ("released for two hours", ("release", "--for", "2h", "--why", "firm\x1bware")),
            ("another release takes its place", ("release", "--for", "90s", "--why", "reset")),
        ):
            status, said = await gpuplane("driver", *words, *state)
            assert status == 0, said
            golden(re.sub(r"1 h \d+ min(?= left: firm)|(?<=for )2 h(?=: firm)", "2 h", said), case)

        _, health = await gpuplane("inspect", "health", "--json", *state)
        node = json.loads(health)["node"]
        assert (node["state"], node["code"]) == ("unhealthy", "not-looked")
        assert node["until"] > node["since"]

        status, said = await gpuplane("driver", "resume", *state)
        assert status == 0, said
        golden(said, "taken back")
        await kubelet.until_capacity(GPU, 4, 4)
        await agent.until_says("4 GPUs (0 to 3): available again")
        warnings = [line for line in agent.log if "4 GPUs (0 to 3): not available" in line]
        assert len(warnings) == 1, warnings
