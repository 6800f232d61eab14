"""What a range may put on record: bounded whatever it sends, and what is left out is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.events import Body, Event, Kind
from belljar.ledger import LedgerWriter, load_or_make_key
from belljar.ledger.schema import check_data
from belljar.network.owner.budget import (
    BLOCK_BYTES,
    MAX_CUT_CHARS,
    MAX_CUT_FIELDS,
    Budget,
    cost_bytes,
    cut_down,
)

HTTP: dict[str, Any] = {
    "range": "r-0",
    "cell": "agent",
    "exchange": 1,
    "stand_in": "shop",
    "method": "POST",
    "url": "http://shop.example/" + "x" * 2000,
    "verdict": "allowed",
    "reason": "",
    "bytes": 70_000,
    "complete": True,
    "headers": [["host", "shop.example"]] * 50,
}
BODY = Body(name="request", content=bytes(65_000), total_bytes=70_000, sha256="0" * 64)
ASKED = Event(kind=Kind.NETWORK_HTTP, data=HTTP, bodies=(BODY,))
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40) | st.just("long " * 100)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
EVENTS = st.builds(
    lambda data, sizes: Event(
        kind=Kind.NETWORK_ATTEMPT,
        data=data,
        bodies=tuple(
            Body(name=f"b{at}", content=bytes(size), total_bytes=size, sha256="0" * 64)
            for at, size in enumerate(sizes)
        ),
    ),
    st.dictionaries(TEXTS, VALUES, max_size=6),
    st.lists(st.integers(0, 9_000), max_size=2),
)


@pytest.mark.promise("2.6")
@settings(deadline=None, max_examples=50)
@given(st.lists(EVENTS, max_size=10))
def test_no_more_is_taken_than_it_may(events: list[Event]) -> None:
    """Whole up to the bound, cut down from then on for good, and none beyond the second; the counts
    are right."""
    budget = Budget.of(8_000)
    taken: list[Event] = []
    for event in events:
        budget, as_taken = budget.take(event)
        if as_taken is None:
            assert budget.spent_bytes + cost_bytes(cut_down(event)) > 10_000
            break
        taken.append(as_taken)
    whole = [event for event in taken if "cut" not in event.data or event in events]
    assert sum(map(cost_bytes, whole)) <= 8_000
    assert sum(map(cost_bytes, taken)) == budget.spent_bytes <= 10_000
    assert (budget.events, budget.cut_events) == (len(taken), len(taken) - len(whole))
    assert taken[: len(whole)] == events[: len(whole)]


def test_what_is_cut_down_still_says_who_and_what() -> None:
    """And is an event of its kind: the digest and the length of a body stay, its bytes and the
    lists go."""
    small = cut_down(ASKED)
    check_data(small.kind, dict(small.data))
    assert small.data == {
        **{name: value for name, value in HTTP.items() if name != "headers"},
        "url": HTTP["url"][:MAX_CUT_CHARS] + "…",
        "cut": True,
    }
    (body,) = small.bodies
    assert (body.content, body.total_bytes, body.sha256) == (b"", 70_000, "0" * 64)
    assert cost_bytes(small) < 1600


@settings(deadline=None, max_examples=50)
@given(EVENTS)
def test_what_is_cut_down_is_small(event: Event) -> None:
    """Whatever it was."""
    small = cut_down(event)
    assert cost_bytes(small) <= 512 + 3 * 320 + 33 * 2 * 6 * 2 * (MAX_CUT_CHARS + 3)
    assert cut_down(small).bodies == small.bodies


@pytest.mark.parametrize(
    ("kind", "name", "size", "is_kept"),
    [
        (Kind.NETWORK_CONNECTION, "secrets", 900, True),
        (Kind.NETWORK_CONNECTION, "secrets", 9000, False),
        (Kind.NETWORK_CONNECTION, "remainder", 900, False),
        (Kind.NETWORK_STREAM, "secrets", 900, False),
    ],
)
def test_a_connection_s_secrets_alone_are_kept(
    kind: Kind, name: str, size: int, is_kept: bool
) -> None:
    """Whatever a compromised gateway calls a body: a handshake's lines are small."""
    body = Body(name=name, content=bytes(size), total_bytes=size, sha256="0" * 64)
    (kept,) = cut_down(Event(kind=kind, bodies=(body,))).bodies
    assert bool(kept.content) == is_kept


def test_of_many_fields_the_first_are_kept() -> None:
    """Where a range's name is, and what a kind demands."""
    many = Event(kind=Kind.NETWORK_ATTEMPT, data={f"field {at}": at for at in range(1000)})
    assert list(cut_down(many).data) == [*(f"field {at}" for at in range(MAX_CUT_FIELDS)), "cut"]


def test_a_ledger_takes_no_more_than_was_counted(tmp_path: Path) -> None:
    """Lines and files of the real one, in blocks: long texts and hostile ones, floats with many
    digits, many small bodies, a large one."""
    run = tmp_path / "run"
    run.mkdir()
    data: dict[str, Any] = {"stand_in": "shop", "what": "publish", "range": "r-0"}
    texts: list[Any] = [
        "",
        "x" * 40_000,
        "\x00" * 9000,
        "\u20ac" * 9000,
        9e15,
        [1e-6] * 1000,
        2**53 - 1,
    ]
    events = [Event(kind=Kind.NETWORK_ATTEMPT, data={**data, "more": text}) for text in texts]
    for size in (*range(1, 40), 1 << 18):
        content = size.to_bytes(4, "big") * size
        kept = Body(
            name="b" * 64, content=content[:-1], total_bytes=2**53 - 1, sha256=f"{size:064x}"
        )
        events.append(Event(kind=Kind.NETWORK_ATTEMPT, data=data, bodies=(kept,)))
    with LedgerWriter(run, load_or_make_key(tmp_path)) as writer:
        for event in events:
            writer.record(event)
        sizes = [file.stat().st_size for file in run.glob("bodies/*/*")]
        taken = (run / "ledger.jsonl").stat().st_size + sum(
            -(-size // BLOCK_BYTES) * BLOCK_BYTES for size in sizes
        )
    assert len(sizes) == 40
    assert taken <= sum(map(cost_bytes, events)) < 2 * taken
