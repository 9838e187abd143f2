"""Golden files: what was so when they were written, as parsed values."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.waiting import until

FOLDER = Path(__file__).parent / "golden"
WRITES = os.environ.get("E2E_GOLDEN") == "write"
WIDTH = 118
SETTLES = 8.0
"""Seconds after which a situation is what it will be, on the machine on which golden files are written."""
SOON = 45.0
"""Seconds within which a situation has to be what it was then."""


def read(name: str) -> Any:
    """What golden/NAME.json has."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def write(name: str, value: Callable[[], Any]) -> None:
    """Write golden/NAME.json where that is what this run is for."""
    if WRITES:
        _write(name, value())


def same(name: str, value: Any, here: Path | None = None) -> None:
    """That a value is what golden/NAME.json has, to the last key. `here`: a folder whose path is left out."""
    found = placed(value, here)
    write(name, lambda: found)
    golden = read(name)
    assert found == golden, f"golden/{name}.json has something else:\n" + "\n".join(differences(golden, found))


def within(name: str, value: Any) -> None:
    """That a value has all of golden/NAME.json: objects may have more keys, and lists no more items."""
    write(name, lambda: value)
    missing = lost(read(name), placed(value, None))
    assert not missing, f"golden/{name}.json has something else:\n" + "\n".join(missing)


def becomes(name: str, look: Callable[[], Any], lost: Callable[[Any, Any], list[Any]]) -> None:
    """That what `look` sees comes to have all of golden/NAME.json; `lost` says what of that a value has not."""
    if WRITES:
        time.sleep(SETTLES)
        _write(name, look())
    golden, missing = read(name), list[Any]()

    def fits() -> bool:
        missing[:] = lost(golden, look())
        return not missing

    def said() -> str:
        return "\n".join(map(str, missing))

    until(fits, f"golden/{name}.json", SOON, said)


def lost(golden: Any, found: Any) -> list[str]:
    """Where the second value has not what the first has; it may have more keys, and lists no more items."""
    return differences(golden, found, added=True)


def differences(golden: Any, found: Any, added: bool = False, place: str = "") -> list[str]:
    """Where two values differ. `added`: keys that only the second has are no difference."""
    if isinstance(golden, dict) and isinstance(found, dict):
        keys = golden.keys() if added else {**golden, **found}.keys()
        nothing = "(no such key)"
        pairs = [(f"{place}.{key}", golden.get(key, nothing), found.get(key, nothing)) for key in keys]
    elif isinstance(golden, list) and isinstance(found, list) and len(golden) == len(found):
        pairs = [(f"{place}[{n}]", *both) for n, both in enumerate(zip(golden, found, strict=True))]
    elif type(golden) is type(found) and golden == found:
        return []
    else:
        return [f"{place}: golden {json.dumps(golden)[:300]}, found {json.dumps(found)[:300]}"]
    return [each for at, old, new in pairs for each in differences(old, new, added, at)]


def placed(value: Any, here: Path | None) -> Any:
    """As JSON would give it back, with `{here}` for the folder."""
    text = json.dumps(value)
    return json.loads(text.replace(str(here), "{here}") if here else text)


def _write(name: str, value: Any) -> None:
    path = FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_dumped(value) + "\n")


def _dumped(value: Any, indent: str = "") -> str:
    """JSON in which whatever has room on a line stands on one."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= WIDTH or not value or not isinstance(value, dict | list):
        return line
    deeper = indent + " "
    if isinstance(value, dict):
        items = [f"{deeper}{json.dumps(key)}: {_dumped(each, deeper)}" for key, each in value.items()]
    else:
        items = [deeper + _dumped(each, deeper) for each in value]
    ends = "{}" if isinstance(value, dict) else "[]"
    return ends[0] + "\n" + ",\n".join(items) + "\n" + indent + ends[1]
