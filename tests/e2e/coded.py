"""What of a document programs may compare: everything but times and sentences for people."""

from typing import Any

TEXTS = {
    "reason",
    "clear_when_text",
    "advice",
    "not_ready_reason",
    "waiting_reason",
    "not_offered",
    "said",
    "waits_for",
    "why",
    "message",
}
TIMES = {"time", "started", "since", "until"}
OTHERS = {"generation"}
"""Numbers that no two runs share."""


def coded(value: Any, key: str = "") -> Any:
    """A JSON value in which of a text is left whether it is empty, and of a time whether it is known."""
    if key in OTHERS:
        return 0
    if key in TIMES:
        return value is not None
    if isinstance(value, dict):
        return {name: coded(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [coded(each, key) for each in value]
    return bool(value) if isinstance(value, str) and key in TEXTS else value


def shape(document: Any) -> Any:
    """The document of `inspect --json` or `inspect health --json`, without this build's version."""
    found = coded(document)
    if agent := found.get("agent"):
        agent["version"] = bool(agent["version"])
    for device in found["devices"]:
        for holder in device.get("holders") or ():
            del holder["since"]  # null or not, by whether kubelet's list came before it
        for reason in device.get("reasons", ()):
            if not reason["code"]:
                del reason["code"]  # what has no code today may have one tomorrow
    for part in found.get("parts", ()):
        if part["state"] == "ok":
            del part["reason"]  # there is nothing that has to be said
    return found
