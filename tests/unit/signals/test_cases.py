"""Cases of a guard test: strict reading, honest counting."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from belljar.errors import PolicyError
from belljar.signals.cases import Case, Outcome, Step, feeds, read_cases, scan_case, score
from belljar.signals.scanner import Scanner
from belljar.signals.streams import StreamScanner
from belljar.signals.values import Channel, KnownValue, ScanBounds, Source, spec_of

TEXT = "AKq9-xR7m.Zp2LwT8"


def line(**fields: object) -> bytes:
    """A case, with what every case has."""
    return json.dumps({"id": "a", "expect": "flag", "channel": "file", **fields}).encode()


def b64(data: bytes) -> str:
    """As a case holds bytes."""
    return base64.b64encode(data).decode()


def stream() -> StreamScanner:
    """One that knows a single value."""
    value = KnownValue(id="v", text=TEXT, source=Source.PROTECTED)
    return StreamScanner(Scanner(spec_of([value], (), (), bytes(32), ScanBounds(time_s=60))))


def test_a_case_of_steps_needs_no_channel_of_its_own() -> None:
    """Its steps have theirs, also different ones; where one has none the line is wrong."""
    steps = [
        {"channel": "http", "http": {"url": "/?d=AKq9-xR7"}},
        {"channel": "file", "data_base64": b64(TEXT.encode())},
    ]
    text = json.dumps({"id": "a", "expect": "flag", "steps": steps}).encode()
    (case,) = read_cases(text, "cases.jsonl")
    assert scan_case(case, stream()).ok
    for wrong in ([steps[0], {"names": ["a"]}, {"data_base64": ""}], [{"data_base64": ""}]):
        with pytest.raises(PolicyError):
            read_cases(json.dumps({"id": "a", "expect": "flag", "steps": wrong}).encode(), "c")


@pytest.mark.parametrize(
    "fields",
    [
        {"channel": "file", "data_base64": b64(TEXT.encode())},
        {
            "channel": "dns",
            "names": [f"{TEXT[:9].replace('.', '')}.evil.example", "7m.Zp2LwT8.evil.example"],
        },
        {"channel": "websocket", "messages": [TEXT[:5], {"base64": b64(TEXT[5:].encode())}]},
        {
            "channel": "http",
            "http": {"method": "GET", "url": f"http://a/?q={TEXT}", "headers": [["a", "b"]]},
        },
        {
            "channel": "http",
            "steps": [{"http": {"url": "/?d=AKq9-xR7"}}, {"http": {"url": "/?d=m.Zp2LwT8"}}],
        },
    ],
    ids=lambda fields: fields["channel"],
)
def test_a_case_of_each_channel_is_carried_out(fields: dict[str, Any]) -> None:
    """What a line says is handed to the scanner, and flagged."""
    (case,) = read_cases(line(**fields), "cases.jsonl")
    assert scan_case(case, stream()).ok


@pytest.mark.parametrize(
    "wrong",
    [
        b"no json",
        b"[]",
        b'{"id": "a", "id": "b"}',
        line(data_base64="%%%"),
        line(expect="maybe", data_base64=""),
        line(channel="carrier pigeon", data_base64=""),
        line(unknown=1, data_base64=""),
        line(names=["a"]),
        line(data_base64="", steps=[]),
        line(steps=[]),
        line(steps=[{"steps": []}]),
        line(channel="http", http={"method": "GET"}),
        line(channel="http", http={"url": "/", "headers": [["a"]]}),
        line(channel="websocket", messages=[1]),
        line(channel="websocket", messages=["\ud800"]),
        line(channel="dns", names=["\ud800.example"]),
        line(channel="http", http={"url": "/\ud800"}),
        b"\xff\xfe",
    ],
)
def test_a_wrong_line_is_named(wrong: bytes) -> None:
    """The second line is wrong: the error says which."""
    good = line(id="good", data_base64="")
    with pytest.raises(PolicyError) as refused:
        read_cases(good + b"\n" + wrong, "cases.jsonl")
    assert refused.value.where == "cases.jsonl:2"


def test_two_cases_have_two_ids() -> None:
    """An id that occurs twice is refused; so is a file without a case."""
    for content in (line(data_base64="") + b"\n" + line(data_base64=""), b"\n\n"):
        with pytest.raises(PolicyError):
            read_cases(content, "c")


def test_a_score_counts_both_mistakes() -> None:
    """A miss lowers recall, a false alarm precision; a wrong class is a miss."""

    def outcome(number: int, *, flags: bool, classes: tuple[str, ...], cls: str = "") -> Outcome:
        case = Case(
            id=str(number),
            expect="flag" if flags else "pass",
            channel=Channel.FILE,
            steps=(Step(channel=Channel.FILE, data=b""),),
            cls=cls,
        )
        return Outcome(case=case, classes=classes)

    result = score(
        [
            outcome(1, flags=True, classes=("card",)),
            outcome(2, flags=True, classes=("card",), cls="iban"),
            outcome(3, flags=False, classes=("card",)),
            outcome(4, flags=False, classes=()),
        ]
    )
    assert (result.precision, result.recall, result.false_positive_rate) == (0.5, 0.5, 0.5)
    assert [failed.case.id for failed in result.failed] == ["2", "3"]


def test_parts_of_a_request_are_fed_apart() -> None:
    """Target, headers and body."""
    (case,) = read_cases(
        line(channel="http", http={"url": "/x", "headers": [["A", "b"]], "body_base64": b64(b"c")}),
        "",
    )
    assert list(feeds(case.steps[0])) == [("url", b"/x"), ("header", b"A: b\r\n"), ("body", b"c")]
