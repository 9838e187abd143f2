"""The agent's log: one line a message on standard error, for people or for machines."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

Format = Literal["text", "json"]


class Json(logging.Formatter):
    """One JSON document a line: time (RFC 3339, UTC), level, logger, message, and error where one was raised."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def set_up(form: Format) -> None:
    """Log to standard error from now on."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s")
    handler.setFormatter(Json() if form == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
