"""The recorder that looks at what it records."""

from __future__ import annotations

import base64
import gzip
import hashlib
import threading
from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from tests.fakes.recorder import MemoryRecorder

from belljar.capture import body_of
from belljar.cell import guarded as guarded_module
from belljar.cell.guarded import GuardedRecorder, guarded_recorder
from belljar.events import Body, Event, JsonValue, Kind
from belljar.policy.guarding import Action, GuardRules, Place
from belljar.policy.load import policy_of
from belljar.signals.observe import Carried, hit_event, output_part
from belljar.signals.scanner import Scanner
from belljar.signals.streams import StreamScanner
from belljar.signals.values import Channel, KnownValue, ValueSource

SECRET = "wJalrXUtnFEMI-secret"
VALUE, VALUE_URL = "protected-value-1", "http://a/protected-value-1"
DECOY = KnownValue(id="aws/secret", text=SECRET, source=ValueSource.DECOY, kind="aws_credentials")


def output(content: bytes, total_bytes: int | None = None, op: int = 1) -> Event:
    digest, size = hashlib.sha256(content).hexdigest(), total_bytes or len(content)
    body = Body(name="stdout", content=content, total_bytes=size, sha256=digest)
    return Event(kind=Kind.EXEC_COMPLETED, cell_id="c-1", data={"op": op}, bodies=(body,))


def guarded(**actions: Action) -> tuple[MemoryRecorder, GuardedRecorder]:
    inner = MemoryRecorder()
    rules = GuardRules(actions={Place(place): action for place, action in actions.items()})
    return inner, GuardedRecorder(inner, rules, bytes(32), [DECOY])


def test_of_other_cells_values_the_newest_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """They don't add up with the cells of a run; the cell's own are always looked for."""
    monkeypatch.setattr(guarded_module, "MAX_FOREIGN", 2)
    inner, recorder = guarded()
    for number in range(5):
        text = f"value-of-cell-{number}"
        recorder.know([KnownValue(id=f"c-1/v{number}", text=text, source=ValueSource.FOREIGN)])
    recorder.record(output(f"{SECRET} value-of-cell-2 value-of-cell-3 value-of-cell-4".encode()))
    recorder.close()
    found = {event.data.get("value") for event in inner.events[1:]}
    assert found == {"aws/secret", "v3", "v4"}


@pytest.mark.parametrize("is_known_first", [True, False])
def test_the_decoys_of_an_ancestor_are_the_cells_own(is_known_first: bool) -> None:
    """Whether their values come to be known before or after it; those of others are not."""
    values = [
        KnownValue(id=f"{cell}/keys/v", text=f"value-of-{cell}", source=ValueSource.FOREIGN)
        for cell in ("c-old", "c-other")
    ]
    inner, recorder = guarded()
    if is_known_first:
        recorder.know(values)
    recorder.adopt(["c-old"])
    if not is_known_first:
        recorder.know(values)
    recorder.record(output(b"value-of-c-old value-of-c-other"))
    recorder.close()
    assert {event.kind for event in inner.events[1:]} == {Kind.DECOY_TAKEN, Kind.DECOY_CARRIED}
    found = [event.data.get("from_cell") for event in inner.events[1:]]
    assert set(found) == {"c-other", None}
    (taken,) = [event for event in inner.events if event.kind is Kind.DECOY_TAKEN]
    assert taken.data["value"] == "keys/v"


@pytest.mark.promise("5.7")
def test_what_was_not_kept_or_comes_too_late_is_on_record_as_not_scanned() -> None:
    """A body of which more went by than is kept, or nothing is, and an event after the end."""
    inner, recorder = guarded()
    recorder.record(output(b"only a part of it", total_bytes=1 << 20))
    recorder.record(output(b"", total_bytes=5000))
    recorder.close()
    recorder.record(output(b"later than the end"))
    reasons = [event.data for event in inner.events if event.kind is Kind.GUARD_UNSCANNED]
    assert [data["bytes"] for data in reasons] == [(1 << 20) - 17, 5000, 18]


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (Action.FLAG, f"a {SECRET} b".encode()),
        (Action.REDACT, b"a [redacted] b"),
        (Action.STOP, None),
    ],
)
def test_what_goes_on_is_by_the_places_action(action: Action, expected: bytes | None) -> None:
    """All of it, all but what was found, or nothing; what was done is on record."""
    inner, recorder = guarded(output=action)
    part = output_part(f"a {SECRET} b".encode(), "exec.output")
    assert recorder.let_out(part, cell_id="c-1") == expected
    assert [event.data["action"] for event in inner.events] == [action.value]


@pytest.mark.promise("5.7")
@pytest.mark.parametrize(
    "ways",
    [
        (base64.b64encode(SECRET.encode()), base64.b64encode(SECRET.encode()).rstrip(b"=")),
        (SECRET.encode().hex().encode(), SECRET.encode().hex().upper().encode()),
        (gzip.compress(SECRET.encode(), 9, mtime=0), gzip.compress(SECRET.encode(), 1, mtime=0)),
    ],
)
def test_an_encoded_value_is_redacted_wherever_it_stands(ways: tuple[bytes, bytes]) -> None:
    """More than once in the same way, and in another."""
    _, recorder = guarded(output=Action.REDACT)
    data = b"".join(b"a line of text, %s, and more.\n" % ways[number % 2] for number in range(20))
    let_out = recorder.let_out(output_part(data, "exec.output"), cell_id="c-1")
    assert let_out == b"a line of text, [redacted], and more.\n" * 20


@pytest.mark.promise("5.7")
def test_a_value_sent_in_single_characters_is_found_whatever_repeats_in_it() -> None:
    """Two messages that are the same are two pieces."""
    inner = MemoryRecorder()
    value = KnownValue(id="p/1", text="ORCHID-7731-AABB", source=ValueSource.PROTECTED)
    recorder = GuardedRecorder(inner, GuardRules(), bytes(32), [value])
    for char in value.text:
        body = Body(name="message", content=char.encode(), total_bytes=1, sha256="0" * 64)
        where = {"range": "r", "cell": "a", "host": "h", "direction": "sent"}
        recorder.record(Event(kind=Kind.NETWORK_WEBSOCKET, data=where, bodies=(body,)))
    recorder.close()
    assert inner.kinds().count(Kind.GUARD_HIT) == 1


@pytest.mark.promise("5.7")
@pytest.mark.parametrize("is_late", [False, True])
def test_what_is_being_scanned_at_the_end_is_found_or_not_scanned(
    monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    """Never neither: the cell's end waits for it, and past that wait it is on record."""
    began, go, feed = threading.Event(), threading.Event(), StreamScanner.feed

    def slow(*args: Any) -> object:  # noqa: ANN401 - it only forwards
        began.set()
        go.wait(60)
        return feed(*args)

    monkeypatch.setattr(StreamScanner, "feed", slow)
    monkeypatch.setattr(guarded_module, "DRAIN_TIMEOUT_S", 0.01 if is_late else 60)
    inner, recorder = guarded()
    recorder.record(output(f"key={SECRET}\n".encode()))
    assert began.wait(60)
    if not is_late:
        go.set()
    recorder.close()
    found = Kind.GUARD_UNSCANNED if is_late else Kind.DECOY_TAKEN
    assert inner.kinds() == [Kind.EXEC_COMPLETED, found]
    assert (inner.events[1].data["evidence"], inner.events[1].cell_id) == (0, "c-1")
    go.set()


def test_an_interrupted_end_scans_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the process would end only when it has scanned all that a guest had it queue."""
    began, go, scanned = threading.Event(), threading.Event(), list[object]()

    def slow(*args: object) -> None:
        scanned.append(args)
        began.set()
        go.wait(60)

    def interrupted(_recorder: GuardedRecorder, _timeout_s: float) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(GuardedRecorder, "_scan", slow)
    monkeypatch.setattr(GuardedRecorder, "flush", interrupted)
    _, recorder = guarded()
    for op in range(20):
        recorder.record(output(b"orders rose by eight percent", op=op))
    assert began.wait(60)
    with pytest.raises(KeyboardInterrupt):
        recorder.close()
    go.set()
    recorder._thread.shutdown()
    assert len(scanned) == 1


@pytest.mark.anyio
async def test_the_last_scans_hold_up_no_other_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are waited for in a thread: here nothing else would let them go on."""
    go, feed, inner = threading.Event(), StreamScanner.feed, MemoryRecorder()

    def slow(*args: Any) -> object:  # noqa: ANN401 - it only forwards
        go.wait(60)
        return feed(*args)

    monkeypatch.setattr(StreamScanner, "feed", slow)
    monkeypatch.setattr(guarded_module, "DRAIN_TIMEOUT_S", 5)
    guard = {"protect": [{"id": "value", "value": VALUE}]}
    loaded = policy_of({"belljar": 1, "risk": "low", "image": "default", "guard": guard})
    async with anyio.create_task_group() as others, guarded_recorder(inner, loaded) as recorder:
        recorder.record(output(VALUE.encode()))
        others.start_soon(anyio.to_thread.run_sync, go.set)
    assert inner.kinds() == [Kind.EXEC_COMPLETED, Kind.GUARD_HIT]


def test_many_small_events_that_wait_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number counts, not only their bytes."""
    go, feed = threading.Event(), StreamScanner.feed

    def late(*args: Any) -> object:  # noqa: ANN401 - it only forwards
        go.wait(60)
        return feed(*args)

    monkeypatch.setattr(StreamScanner, "feed", late)
    monkeypatch.setattr("belljar.cell.guarded.MAX_QUEUED_BYTES", 64 << 10)
    inner, recorder = guarded()
    for op in range(200):
        recorder.record(output(b"orders rose by eight percent", op=op))
    unscanned = inner.kinds().count(Kind.GUARD_UNSCANNED)
    go.set()
    recorder.close()
    assert unscanned >= 100
    assert inner.kinds().count(Kind.GUARD_UNSCANNED) == unscanned


# What a gateway that blocks or stops doesn't look at before it goes on
UNSEEN: dict[str, tuple[Kind, dict[str, JsonValue]]] = {
    "between cells": (
        Kind.NETWORK_STREAM,
        {"stand_in": "db", "verdict": "allowed", "between_cells": True},
    ),
    "refused head": (Kind.NETWORK_HTTP, {"url": VALUE_URL}),
    "tls": (Kind.NETWORK_TLS, {"sni": VALUE}),
    "sink": (Kind.NETWORK_STREAM, {"stand_in": "", "verdict": "allowed"}),
    "decrypted": (
        Kind.NETWORK_ATTEMPT,
        {"stand_in": "ssh", "what": "exec", "operation": "ssh.exec"},
    ),
}


@pytest.mark.promise("5.7")
@pytest.mark.parametrize(("action", "done"), [(Action.BLOCK, "flag"), (Action.STOP, "stop")])
@pytest.mark.parametrize("unseen", UNSEEN)
def test_what_no_gateway_looks_at_is_reported_at_once(
    action: Action, done: str, unseen: str
) -> None:
    """Protected data there is reported whatever the policy does with it."""
    inner, recorder = guarded(range=action)
    recorder.know([KnownValue(id="p/v", text=VALUE, source=ValueSource.PROTECTED)])
    kind, data = UNSEEN[unseen]
    name = "received" if kind is Kind.NETWORK_STREAM else "message"
    bodies = () if VALUE in str(data) else (body_of(name, VALUE.encode(), 1 << 10),)
    recorder.record(Event(kind=kind, data=data, bodies=bodies))
    assert recorder.flush()
    assert [(hit["evidence"], hit["action"]) for hit in hits_of(inner)] == [(0, done)]
    recorder.close()
    assert len(hits_of(inner)) == 1


@pytest.mark.promise("5.7")
@pytest.mark.parametrize("said", [{}, None, {"action": "flag"}, {"place": "output"}, {"value": ""}])
def test_what_a_gateway_looks_at_is_reported_once(said: dict[str, str] | None) -> None:
    """By it; at the end, if the range ended before, or if it was told as another one."""
    inner, recorder = guarded(range=Action.BLOCK)
    recorder.know([KnownValue(id="p/v", text=VALUE, source=ValueSource.PROTECTED)])
    recorder.record(Event(kind=Kind.NETWORK_HTTP, data={"url": VALUE_URL, "complete": True}))
    assert (recorder.flush(), hits_of(inner)) == (True, [])
    (hit,) = Scanner(recorder.spec).scan(VALUE.encode()).hits
    if said is not None:
        part = Carried(Channel.HTTP, "http.url", b"")
        data = hit_event(part, hit, cell_id=None, action=Action.BLOCK).data
        recorder.record(Event(kind=Kind.GUARD_HIT, data={**data, "by": "gateway", **said}))
    recorder.close()
    by = ["gateway"] * (said is not None) + [None] * (said != {})
    assert [hit.get("by") for hit in hits_of(inner)] == by


def test_what_is_remembered_of_values_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest chooses how many there are; what is seen again after too many others is on record."""
    monkeypatch.setattr(guarded_module, "MAX_COUNTED", 8)
    inner, recorder = guarded(range=Action.BLOCK)
    texts = [f"protected-value-{number:02}" for number in range(30)]
    protected = ValueSource.PROTECTED
    recorder.know([KnownValue(id=f"p/{each}", text=each, source=protected) for each in texts])
    for text in (*texts, texts[0]):
        recorder.record(output(text.encode()))
        told = {"digest": recorder.spec.digest(text.encode()), "place": "range", "action": "block"}
        told |= {"class": "protected", "value": f"p/{text}"}
        recorder.record(Event(kind=Kind.GUARD_HIT, data=told))
    assert recorder.flush()
    assert len(recorder._seen) == len(recorder._told) == 8
    found = [hit["value"] for hit in hits_of(inner) if "evidence" in hit]
    assert found == [f"p/{each}" for each in (*texts, texts[0])]
    url: dict[str, JsonValue] = {"url": f"http://a/{texts[0]}", "complete": True}
    recorder.record(Event(kind=Kind.NETWORK_HTTP, data=url))
    recorder.close()
    assert not recorder._held


def hits_of(inner: MemoryRecorder) -> list[Mapping[str, JsonValue]]:
    return [event.data for event in inner.events if event.kind is Kind.GUARD_HIT]
