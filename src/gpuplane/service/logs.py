"""The log of a daemon: one line a message on standard error, for people or for machines.

Messages carry texts from outside: what a driver, a container's name, an API server or a file says. None of these can
begin a line of its own or steer a terminal: whatever cannot be printed is written as a program would write it.

What a line is about is said with it (`extra=Subject(…).extra`), and becomes fields where the log is JSON.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

from gpuplane.base.logsubject import LogSubject
from gpuplane.base.text import escape_unprintable

Format = Literal["text", "json"]

TRACEBACK_PREFIX = "  | "
"""Before each line of a traceback, so that none can be taken for a message."""


class Text(logging.Formatter):
    """Time, level and message; the traceback of an exception below it, each line set off."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escape_unprintable(super().formatMessage(record))

    def formatException(self, ei: object) -> str:
        lines = super().formatException(ei).split("\n")  # type: ignore[arg-type]
        return "\n".join(TRACEBACK_PREFIX + escape_unprintable(line) for line in lines)


class Json(logging.Formatter):
    """One JSON document a line: time (RFC 3339, UTC), level, logger, message, what it is about, and error where one was
    raised."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields(getattr(record, "subject", None)),
        }
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        line = json.dumps(document, ensure_ascii=False)
        return line if line.isprintable() else json.dumps(document)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def fields(subject: object) -> dict[str, object]:
    """What a line is about, as fields: `device`, `part`, `code` and `resource`, those that there are. Several devices
    are `devices`, several resources `resources`."""
    if not isinstance(subject, LogSubject):
        return {}
    found: dict[str, object] = {"part": subject.part, "code": subject.code}
    for name, each in (("device", subject.devices), ("resource", subject.resources)):
        found |= {name: each[0]} if len(each) == 1 else {f"{name}s": list(each)}
    return {name: value for name, value in found.items() if value}


def formatter(form: Format) -> logging.Formatter:
    """What makes lines of messages."""
    return Json() if form == "json" else Text()


def set_up(form: Format) -> None:
    """Log to standard error from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(form))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
