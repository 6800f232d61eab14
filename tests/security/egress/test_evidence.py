"""What counts as evidence of a case, on a sample that was recorded from real ranges
(`sample.json`): each kind is satisfied by it, and by nothing less or else."""

from __future__ import annotations

import base64
import functools
import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from tests.security.egress.evidence import (
    Both,
    Counted,
    Either,
    Evidence,
    NeverSent,
    Refused,
    RefusedEach,
    Seen,
    Word,
    fill,
    unasked_answers,
)
from tests.security.egress.frames import TCP, UDP, Frame, read_frames
from tests.security.egress.play import own_words, place
from tests.security.egress.table import CASES, LISTENED

SAMPLE: Final = json.loads(Path(__file__).with_name("sample.json").read_text())
BY_NAME: Final = {case.name: case for case in CASES}
JUDGED: Final = ("tcp-public", "udp-public", "mdns", "http", "http-other-host", "https", "https-no-name", "name-unknown", "sink")  # fmt: skip
"""Cases whose events say a verdict."""
TRACED: Final = (*JUDGED, "dns-labels", "dns-many", "target", "mail")
"""Cases that leave events."""
PACKETS: Final = ("tcp-public", "udp-public", "mdns", "target", "http")
"""Cases that look at frames."""
UNSENT: Final = {
    "raw-icmp": {"target": "203.0.113.21", "protocol": 1},
    "ipv6": {"kind": 0x86DD, "target": "2001:db8::1"},
    "loopback": {"target": "127.0.0.1", "target_port": 80},
    "ping": {"target": "203.0.113.20", "protocol": 1},
}
"""Cases of which no frame may leave: what it would be."""


@functools.cache
def recorded(name: str) -> tuple[Seen, Evidence, str]:
    """What was seen in the sample's range of this case, its evidence as of then, and its cell."""
    case = BY_NAME[name]
    part = SAMPLE[place(case)[0]]
    frames = tuple(read_frames(base64.b64decode(part["pcap"])))
    macs = part["macs"]
    seen = Seen(
        events=tuple((kind, data) for kind, data in part["events"]),
        frames=frames,
        gateways=frozenset(each.from_mac for each in frames if each.to_mac in macs.values()),
        counters=part["counters"],
        macs=macs,
        words=part["words"],
    )
    return seen, fill(case.evidence, {**part["facts"], **part["own"][name]}), place(case)[1]


def lacks(name: str, **changes: Any) -> str:  # noqa: ANN401 - fields of `Seen`
    """What the case misses in the sample, with these changes."""
    seen, evidence, cell = recorded(name)
    return evidence.lacks(replace(seen, **changes), name, cell)


@pytest.mark.parametrize("name", [*TRACED, *UNSENT])
def test_a_recorded_case_is_complete_and_nothing_less(name: str) -> None:
    """The sample has all that the case demands. No record, no proof: a prober that tried nothing
    proves nothing; nor is an event alone enough where packets are looked at."""
    assert lacks(name) == ""
    assert name not in TRACED or lacks(name, events=())
    assert name not in PACKETS or lacks(name, frames=())


@pytest.mark.parametrize("name", JUDGED)
def test_another_verdict_is_no_proof(name: str) -> None:
    """An event that says anything else, even besides the right one, is noticed."""
    seen, _, _ = recorded(name)
    other = {"reason": "another", "answer": "203.0.113.200", "verdict": "other"}
    changed = [
        (kind, {**data, **{field: word for field, word in other.items() if field in data}})
        for kind, data in seen.events
    ]
    assert lacks(name, events=tuple(changed)) != ""
    if name != "sink":  # one more connection that ended elsewhere is another case's
        assert lacks(name, events=(*seen.events, *changed)) != ""


@pytest.mark.parametrize("name", ["tcp-public", "udp-public", "mdns"])
def test_an_answer_is_a_leak(name: str) -> None:
    """Data from where nothing may answer is noticed beside all refusals."""
    seen, evidence, cell = recorded(name)
    frame = Frame(
        at_s=1.0,
        to_mac=seen.macs[cell],
        from_mac="02:00:00:00:00:01",
        kind=0x0800,
        source=evidence.address,  # type: ignore[attr-defined]
        target="10.0.0.1",
        protocol=TCP if name == "tcp-public" else UDP,
        source_port=int(evidence.port),  # type: ignore[attr-defined]
        target_port=50_000,
        payload=b"leaked",
    )
    frames = (*seen.frames, frame)
    assert "answered" in lacks(name, frames=frames)
    assert unasked_answers(replace(seen, frames=frames), cell, frozenset(), has_sink=True)


@pytest.mark.parametrize("name", UNSENT)
def test_what_must_not_leave_is_noticed_when_it_leaves(name: str) -> None:
    """A single frame of the cell's is enough, also under a MAC that nobody has. A prober that says
    nothing, or that it was given a socket, proves nothing."""
    seen, _, cell = recorded(name)
    for mac in (seen.macs[cell], "02:aa:bb:cc:dd:ee"):
        plain = Frame(at_s=1.0, to_mac="02:00:00:00:00:01", from_mac=mac, kind=0x0800)
        left = replace(plain, **UNSENT[name])  # type: ignore[arg-type]
        assert lacks(name, frames=(*seen.frames, left)) != ""
    if name != "ipv6":
        assert lacks(name, words={}) != ""
        assert lacks(name, words={name: "sent"}) != ""


def test_no_two_cases_live_on_the_same_evidence() -> None:
    """Each has something of its own: what did nothing can't be proven by another."""

    class Facts(defaultdict[str, str]):
        def __missing__(self, name: str) -> str:
            return f"<{name}>"

    found: Counter[object] = Counter()
    for case in CASES:
        own = Facts(None, own_words(case, list(range(len(LISTENED)))))
        found.update((place(case), part) for part in {*_traces(fill(case.evidence, own))})
    assert [part for part, count in found.items() if count > 1] == []


def _traces(evidence: Evidence) -> list[Evidence]:
    """The parts that need something of the case's own to have been seen."""
    if isinstance(evidence, Both | Either):
        parts = evidence.parts if isinstance(evidence, Both) else evidence.ways
        return [trace for part in parts for trace in _traces(part)]
    return [] if isinstance(evidence, NeverSent | Word | Counted) else [evidence]


def test_each_of_several_addresses_must_be_refused() -> None:
    """One that is missing is named."""
    seen, evidence, cell = recorded("tcp-public")
    assert isinstance(evidence, Refused)
    each = RefusedEach(("address",), f"{evidence.address},203.0.113.250", evidence.port)
    named = each.lacks(seen, "", cell)
    assert "203.0.113.1:" in named or "203.0.113.250" in named


def test_frames_are_read_as_far_as_cases_look() -> None:
    """Of the sample: datagrams, and what an ICMP error is about."""
    seen, _, cell = recorded("udp-public")
    refusal = next(frame for frame in seen.got(cell) if frame.icmp[0] == 3)
    asked = [(frame.protocol, frame.target) for frame in seen.sent(cell)]
    sent = seen.sent(cell)[asked.index((UDP, "203.0.113.8"))]
    assert refusal.quoted == (UDP, "203.0.113.8", sent.target_port)
    assert sent.payload.startswith(b"c")
    with pytest.raises(ValueError, match="no packet record"):
        list(read_frames(b"anything else"))
