"""Golden files: what was so when they were written, as parsed values."""

import json
import os
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "golden"
WRITES = os.environ.get("E2E_GOLDEN") == "write"
WIDTH = 118
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def same(name: str, value: Any, here: Path | None = None) -> None:
    """That a value is what golden/NAME.json has, to the last key. `here`: a folder whose path is left out."""
    found = _placed(value, here)
    if WRITES:
        _write(name, found)
    golden = json.loads((FOLDER / f"{name}.json").read_text())
    assert found == golden, f"golden/{name}.json has something else:\n" + "\n".join(differences(golden, found))


def within(name: str, value: Any, here: Path | None = None) -> None:
    """That all of golden/NAME.json is in a value: objects may have come to have more keys, lists no more items."""
    found = _placed(value, here)
    if WRITES:
        _write(name, found)
    missing = list(differences(json.loads((FOLDER / f"{name}.json").read_text()), found, added=True))
    assert not missing, f"golden/{name}.json has something else:\n" + "\n".join(missing)


def differences(golden: Any, found: Any, added: bool = False, place: str = "") -> list[str]:
    """Where two values differ. `added`: keys that only the second has are none."""
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


def _placed(value: Any, here: Path | None) -> Any:
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
