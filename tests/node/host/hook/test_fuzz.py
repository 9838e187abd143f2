"""Whatever a state, a configuration or an image's library has in it: the hook ends, and says one line or none."""

import json
import random
from collections.abc import Iterator

from tests.lengths import length
from tests.node.host.hook.elf import compatible
from tests.node.host.hook.world import COMPAT, HOST, LIBRARIES, Container

PIECES = [
    b'"',
    b"\\",
    b"\\u",
    b"\\ud800",
    b"\\udc00",
    b"\\u0000",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"-",
    b"1e",
    b"null",
    b"\0",
    b"\xff",
]
NUMBERS = [0, 1, 7, 63, 64, 65, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1]

TIMES = length(200, 20_000)
"""How many mutations."""


def of_text(text: bytes, seed: int, times: int = TIMES) -> Iterator[bytes]:
    """Texts that were cut, doubled, turned over, or met a piece of syntax."""
    chance = random.Random(seed)
    for _ in range(times):
        changed = bytearray(text)
        for _ in range(chance.randint(1, 4)):
            at, size = chance.randrange(len(changed) + 1), chance.randint(0, 12)
            changed[at : at + size] = chance.choice(
                [
                    b"",
                    chance.choice(PIECES),
                    chance.choice(PIECES) * 100,
                    bytes(changed[at : at + size]) * 2,
                    chance.randbytes(size),
                ]
            )
        yield bytes(changed)


def of_numbers(content: bytes, seed: int, times: int = TIMES) -> Iterator[bytes]:
    """Files in which a header's number became another one, or whose end is missing."""
    chance = random.Random(seed)
    for _ in range(times):
        changed = bytearray(content)
        for _ in range(chance.randint(1, 3)):
            size = chance.choice([1, 2, 4, 8])
            at = chance.randrange(len(changed) - size)
            changed[at : at + size] = (chance.choice(NUMBERS) % 2 ** (8 * size)).to_bytes(size, "little")
        yield bytes(changed[: len(changed) - chance.choice([0, 0, 0, chance.randrange(len(changed))])])


def ends_well(container: Container, *arguments: str, state: bytes | None = None) -> None:
    """It says nothing, or what is wrong."""
    code, said = container.run(*arguments, state=state)

    assert (code, said.count("\n")) in {(0, 0), (1, 1)}, (code, said)
    assert "signal" not in said


def test_states(container: Container, seed: int) -> None:
    """A state that is none is refused, and one that is one leads to a root."""
    state = json.dumps(
        {"id": "ü😀\n\\", "pid": -1.5e3, "annotations": {"a": [True, None, {}]}, "root": str(container.root)}
    ).encode()
    for changed in of_text(state, seed):
        ends_well(container, f"--link=x::{LIBRARIES}/y", state=changed)


def test_configurations(container: Container, seed: int) -> None:
    """A config.json that is none is refused."""
    config = json.dumps(
        {"process": {"env": ["A=\u2028"]}, "root": {"path": "../root", "readonly": False}, "mounts": []}
    ).encode()
    for changed in of_text(config, seed):
        (container.bundle / "config.json").write_bytes(changed)
        ends_well(container, f"--link=x::{LIBRARIES}/y")


def test_libraries(container: Container, seed: int) -> None:
    """A library whose numbers lie is no library that could be taken."""
    content = compatible("13.1", [535, 550, 580, 590])
    for each, changed in enumerate((*of_numbers(content, seed, TIMES // 2), *of_text(content, seed, TIMES // 4))):
        container.put(f"{COMPAT}/libcuda.so.590.44.01", changed)
        ends_well(container, f"--compat={COMPAT}", *HOST)
        assert each or container.inside("/etc/ld.so.conf").exists()
