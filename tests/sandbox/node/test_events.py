"""Events that come again (client-go, tools/record/events_cache.go)."""

from gpuplane.sandbox.kubelet.pods import Event
from gpuplane.sandbox.node.events import BURST, SECONDS_PER_EVENT, SIMILAR_EVENTS, SIMILAR_SECONDS, EventBook
from gpuplane.sandbox.node.objects import Json
from tests.sandbox.node.objects import bound_pod

POD = bound_pod()


def enter(book: EventBook, message: str, seconds: float = 0.0, container: str = "main") -> Json | None:
    return book.enter(POD, Event("Failed", message, container), "n1", f"at {seconds:g}", seconds)


def test_the_same_again_counts_up_one_object() -> None:
    book = EventBook()
    first, again = enter(book, "Error: no", 1), enter(book, "Error: no", 2)
    assert first is not None and again is not None
    assert (first["count"], again["count"]) == (1, 2)
    assert again["metadata"]["name"] == first["metadata"]["name"]
    assert (again["firstTimestamp"], again["lastTimestamp"]) == ("at 1", "at 2")


def test_of_another_container_it_is_another() -> None:
    book = EventBook()
    first, other = enter(book, "Error: no"), enter(book, "Error: no", container="side")
    assert first is not None and other is not None
    assert other["count"] == 1
    assert other["metadata"]["name"] != first["metadata"]["name"]


def test_many_messages_of_one_reason_become_one() -> None:
    book = EventBook()
    found = [enter(book, f"attempt {number}") for number in range(SIMILAR_EVENTS + 1)]
    told = [(each["message"], each["count"]) for each in found if each]
    assert told == [
        *((f"attempt {number}", 1) for number in range(SIMILAR_EVENTS - 1)),
        (f"(combined from similar events): attempt {SIMILAR_EVENTS - 1}", 1),
        (f"(combined from similar events): attempt {SIMILAR_EVENTS}", 2),
    ]
    later = enter(book, "attempt after a while", SIMILAR_SECONDS + 1)
    assert later is not None
    assert later["message"] == "attempt after a while"


def test_who_says_too_much_is_not_heard_for_a_while() -> None:
    book = EventBook()
    assert all(enter(book, "Error: no") for _ in range(BURST))
    assert enter(book, "Error: no") is None
    heard = enter(book, "Error: no", SECONDS_PER_EVENT)
    assert heard is not None
    assert heard["count"] == BURST + 2
