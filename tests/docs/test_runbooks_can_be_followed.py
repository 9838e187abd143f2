"""Every command of the runbooks is typed beside a running agent, and has the effect that its page says."""

import asyncio
import json
from pathlib import Path

from gpuplane.sandbox.kubelet import Kubelet
from tests.docs.commands import shown
from tests.node.agent.test_process import GPU, Place, gpuplane

RUNBOOKS = sorted((Path(__file__).parents[2] / "docs/runbooks").glob("*.md"))
VALUES = {"GPU": "GPU-0"}
STATES_AFTER = {
    ("health", "drain"): {"drained"},
    ("health", "restore"): {"healthy"},
    ("driver", "release"): {"unhealthy"},
    ("driver", "resume"): {"healthy"},
    ("inspect",): {"healthy"},
    ("inspect", "health"): {"healthy"},
}
"""How GPU-0 stands after each command."""


def undone(words: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The command that ends what this one began."""
    match words:
        case ("health", "drain", device, *_):
            return (("health", "restore", device),)
        case ("driver", "release", *_):
            return (("driver", "resume"),)
    return ()


def runbook_commands() -> list[tuple[str, ...]]:
    """Each command line once, with values in the place of its placeholders. `gpuplane` alone is the program's name."""
    return list(dict.fromkeys(typed(each.words) for page in RUNBOOKS for each in shown(page) if each.words))


def typed(words: tuple[str, ...]) -> tuple[str, ...]:
    """A command line of a page as somebody types it; why a GPU is drained makes no other command."""
    before = ("", *words)
    return tuple(
        "because" if after == "--why" else VALUES.get(word, word)
        for after, word in zip(before, words, strict=False)
        if word != "…"
    )


def command_name(words: tuple[str, ...]) -> tuple[str, ...]:
    return next(words[:count] for count in (2, 1) if words[:count] in STATES_AFTER)


async def state(place: Place) -> str:
    status, text = await gpuplane("inspect", "health", "--json", "--state-dir", place.state)
    assert status == 0, text
    return next(str(each["state"]) for each in json.loads(text)["devices"] if each["uuid"] == "GPU-0")


async def test_each_command_of_the_runbooks_does_what_its_page_says(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.machine.write_text("gpus: [{index: 0, uuid: GPU-0, model: T}, {index: 1, uuid: GPU-1, model: T}]\n")
    commands = runbook_commands()
    assert {command_name(words) for words in commands} == STATES_AFTER.keys()
    async with Kubelet(place.kubelet) as kubelet, place.agent():
        await kubelet.until_capacity(GPU, 2, 2)
        for words in commands:
            for each in (words, *undone(words)):
                status, said = await gpuplane(*each, "--state-dir", place.state)
                assert status == 0, (each, said)
                async with asyncio.timeout(60):
                    while await state(place) not in STATES_AFTER[command_name(each)]:
                        await asyncio.sleep(0.1)
