"""One message is one line, whatever a text from outside has in it: nobody can write a line of the log but we."""

import io
import json
import logging
import re
from datetime import datetime

import pytest

from gpuplane.base.logsubject import LogSubject
from gpuplane.service.logs import Format, formatter

FORGED = "2026-01-01 00:00:00,000 ERROR   every GPU is lost"
HOSTILE = f"busy\n{FORGED}\r\x1b[2J\x9b2J\u2028\x00\udc80 é"
BEGINS = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ ")


def said(form: Format, why: str = "", fault: Exception | None = None, subject: LogSubject = LogSubject()) -> str:  # noqa: B008
    """What the log has after one message, and one exception where there is one."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter(form))
    record = logging.LogRecord(
        "gpuplane.mps", logging.ERROR, "", 0, "%s", (why,), (type(fault), fault, None) if fault else None
    )
    vars(record).update(subject.extra)
    handler.handle(record)
    return stream.getvalue()


def test_a_message_is_one_line_that_can_be_printed() -> None:
    """What cannot be shown is written as a program would write it; what is merely no ASCII stays."""
    line = said("text", HOSTILE)
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert BEGINS.match(line)
    assert line.endswith(r"busy\n" + FORGED + r"\r\x1b[2J\x9b2J\u2028\x00\udc80 é" + "\n")


def test_the_lines_of_an_exception_cannot_be_taken_for_messages() -> None:
    """A traceback keeps its lines, each set off, with the text of the exception made safe too."""
    lines = said("text", "it failed", ValueError(HOSTILE)).splitlines()
    assert BEGINS.match(lines[0])
    assert len(lines) > 1
    assert all(line.startswith("  | ") and line.isprintable() for line in lines[1:])
    assert any(FORGED in line for line in lines[1:])


@pytest.mark.parametrize("fault", [None, ValueError(HOSTILE)])
def test_a_document_is_one_line_that_can_be_printed(fault: Exception | None) -> None:
    """And says what was said, to the character."""
    line = said("json", HOSTILE, fault)
    assert line[:-1].isprintable()
    document = json.loads(line)
    assert document["message"] == HOSTILE
    assert fault is None or HOSTILE in document["error"]
    assert datetime.fromisoformat(document["time"]).tzinfo is not None


@pytest.mark.parametrize(
    ("subject", "fields"),
    [
        (LogSubject(), {}),
        (LogSubject(devices=("GPU-a",), code="gpu-lost"), {"device": "GPU-a", "code": "gpu-lost"}),
        (
            LogSubject(devices=("GPU-a", "GPU-b"), part="cdi", resources=("nvidia.com/gpu",)),
            {"devices": ["GPU-a", "GPU-b"], "part": "cdi", "resource": "nvidia.com/gpu"},
        ),
        (LogSubject(resources=("a/x", "a/y")), {"resources": ["a/x", "a/y"]}),
    ],
)
def test_what_a_line_is_about_is_fields(subject: LogSubject, fields: dict[str, object]) -> None:
    """Of a JSON log, only those that there are; a text log is as it was."""
    document = json.loads(said("json", "it failed", subject=subject))
    own = {name: value for name, value in document.items() if name not in ("time", "level", "logger", "message")}
    assert own == fields
    assert said("text", "it failed", subject=subject).endswith("ERROR   it failed\n")
