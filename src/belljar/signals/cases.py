"""Cases of a guard test: one line each, the steps that carry it out, and the score of many. Pure:
who runs the steps (the scanner alone, or a live range) says what was found.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from belljar.dataclass import dataclass
from belljar.errors import PolicyError
from belljar.signals.streams import StreamScanner
from belljar.signals.values import Channel, Scanned

MAX_LINE_BYTES: Final = 32 << 20
MAX_FILE_BYTES: Final = 1 << 30
MAX_CASES: Final = 100_000
MAX_STEPS: Final = 1000
_CHANNELS: Final = ("http", "dns", "websocket", "smtp", "file", "output", "model")
_PAYLOAD: Final = {"http": "http", "dns": "names", "websocket": "messages"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An HTTP request."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that is sent.

    `http`, `names` (DNS, in order), `messages` (WebSocket) or `data` counts, by channel.
    """

    channel: Channel
    http: Request | None = None
    names: tuple[str, ...] = ()
    messages: tuple[str | bytes, ...] = ()
    data: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is sent, and whether it must be flagged. `cls`: "" for any."""

    id: str
    flags: bool
    channel: Channel
    steps: tuple[Step, ...]
    cls: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was found. `problem`: why the scan is incomplete."""

    case: Case
    classes: tuple[str, ...]
    problem: str = ""

    @property
    def flagged(self) -> bool:
        """Whether it was found, as its class."""
        return (
            self.case.cls in self.classes
            if self.case.cls and self.case.flags
            else bool(self.classes)
        )

    @property
    def ok(self) -> bool:
        """Whether this was expected."""
        return self.flagged == self.case.flags and not (self.problem and not self.case.flags)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Rates of many cases; without cases 1, or 0 of false positives."""

    cases: int
    failed: tuple[Outcome, ...]
    precision: float
    recall: float
    false_positive_rate: float

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "cases": self.cases,
            "precision": self.precision,
            "recall": self.recall,
            "false_positive_rate": self.false_positive_rate,
            "failed": [
                {
                    "id": outcome.case.id,
                    "expect": "flag" if outcome.case.flags else "pass",
                    "class": outcome.case.cls,
                    "channel": outcome.case.channel.value,
                    "found": list(outcome.classes),
                    "problem": outcome.problem,
                }
                for outcome in self.failed
            ],
            "misses_by_class": self.misses(lambda case: case.cls or "any"),
            "misses_by_channel": self.misses(lambda case: case.channel.value),
        }

    def misses(self, key: Callable[[Case], str]) -> dict[str, int]:
        """Missed cases by class or channel."""
        return dict(
            sorted(
                Counter(key(outcome.case) for outcome in self.failed if outcome.case.flags).items()
            )
        )


def score(outcomes: Iterable[Outcome]) -> Score:
    """Precision, recall and false-positive rate."""
    found = tuple(outcomes)
    true = sum(outcome.case.flags and outcome.flagged for outcome in found)
    false = sum(not outcome.case.flags and outcome.flagged for outcome in found)
    wanted = sum(outcome.case.flags for outcome in found)
    return Score(
        cases=len(found),
        failed=tuple(outcome for outcome in found if not outcome.ok),
        precision=true / (true + false) if true + false else 1.0,
        recall=true / wanted if wanted else 1.0,
        false_positive_rate=false / (len(found) - wanted) if len(found) > wanted else 0.0,
    )


def feeds(step: Step) -> Iterator[tuple[str, bytes]]:
    """Parts of a step, for `StreamScanner.feed`."""
    if step.http is not None:
        yield "url", step.http.url.encode()
        yield (
            "header",
            b"".join(f"{name}: {value}\r\n".encode() for name, value in step.http.headers),
        )
        if step.http.body:
            yield "body", step.http.body
    for name in step.names:
        yield "label", name.encode()
    for message in step.messages:
        yield "message", message.encode() if isinstance(message, str) else message
    if step.data:
        yield "data", step.data


def scan_case(case: Case, stream: StreamScanner) -> Outcome:
    """Scan a case as one flow."""
    results: list[Scanned] = []
    for step in case.steps:
        results += [stream.feed(case.id, step.channel, part, data) for part, data in feeds(step)]
    stream.end(case.id)
    classes = dict.fromkeys(hit.cls for result in results for hit in result.hits)
    return Outcome(
        case=case,
        classes=tuple(classes),
        problem=next((result.problem for result in results if not result.complete), ""),
    )


# --- reading ---


def read_cases(content: bytes, source: str) -> tuple[Case, ...]:
    """Read JSON lines. Raises PolicyError with the line."""
    cases: dict[str, Case] = {}
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            case = _case(_object(line), f"line {number}")
            if case.id in cases:
                raise ValueError(f"the id {case.id!r} is another case's already")
        except (ValueError, RecursionError) as error:
            raise PolicyError(
                f"no case: {error}",
                where=f"{source}:{number}",
                hint="docs/guard.md shows the format",
            ) from None
        cases[case.id] = case
        if len(cases) > MAX_CASES:
            raise PolicyError(f"more than {MAX_CASES} cases", where=source, hint="split the file")
    if not cases:
        raise PolicyError(
            "there is no case in it", where=source, hint="docs/guard.md shows the format"
        )
    return tuple(cases.values())


def _object(line: bytes) -> Mapping[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"a line has at most {MAX_LINE_BYTES >> 20} MiB")
    value = json.loads(line.decode(), object_pairs_hook=_unique)
    if not isinstance(value, dict):
        raise ValueError("a line is one JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return found


def _case(fields: Mapping[str, Any], where: str) -> Case:
    _only(
        fields,
        {"id", "expect", "class", "channel", "http", "names", "messages", "data_base64", "steps"},
    )
    if fields.get("expect") not in {"flag", "pass"}:
        raise ValueError('`expect` is "flag" or "pass"')
    channel = _channel(fields)
    if "steps" in fields:
        if any(name in fields for name in ("http", "names", "messages", "data_base64")):
            raise ValueError("with `steps`, what is sent stands in them alone")
        steps = fields["steps"]
        if not isinstance(steps, list) or not 0 < len(steps) <= MAX_STEPS:
            raise ValueError(f"`steps` is a list of 1 to {MAX_STEPS}")
        made = tuple(_step(_mapping(step, "a step"), channel, within=True) for step in steps)
    else:
        made = (_step(fields, channel, within=False),)
    return Case(
        id=_text(fields, "id", where),
        flags=fields["expect"] == "flag",
        cls=_text(fields, "class", ""),
        channel=channel,
        steps=made,
    )


def _step(fields: Mapping[str, Any], channel: Channel, *, within: bool) -> Step:
    if within:
        _only(fields, {"channel", "http", "names", "messages", "data_base64"})
        channel = _channel(fields) if "channel" in fields else channel
    wanted = _PAYLOAD.get(channel.value, "data_base64")
    given = [name for name in ("http", "names", "messages", "data_base64") if name in fields]
    if given != [wanted]:
        raise ValueError(f"channel `{channel.value}` has `{wanted}`, and nothing else is sent")
    value = fields[wanted]
    if wanted == "http":
        return Step(channel=channel, http=_request(_mapping(value, "`http`")))
    if wanted == "names":
        return Step(channel=channel, names=tuple(_texts(value, "names")))
    if wanted == "messages":
        return Step(
            channel=channel, messages=tuple(_message(item) for item in _list(value, "messages"))
        )
    return Step(channel=channel, data=_bytes(value, "data_base64"))


def _request(fields: Mapping[str, Any]) -> Request:
    _only(fields, {"method", "url", "headers", "body_base64"})
    pairs = [_texts(pair, "headers") for pair in _list(fields.get("headers", []), "headers")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("a header is a pair of name and value")
    url = _text(fields, "url", "")
    if not url:
        raise ValueError("`http` has a `url`")
    return Request(
        method=_text(fields, "method", "GET"),
        url=url,
        headers=tuple((name, value) for name, value in pairs),
        body=_bytes(fields.get("body_base64", ""), "body_base64"),
    )


def _message(item: object) -> str | bytes:
    if isinstance(item, str):
        return _sent_text(item, "a message is a text or an object")
    fields = _mapping(item, "a message that is no text")
    _only(fields, {"base64"})
    return _bytes(fields.get("base64"), "base64")


def _only(fields: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(fields) - known)
    if unknown:
        raise ValueError(f"there is no `{unknown[0][:64]}`; known are {', '.join(sorted(known))}")


def _channel(fields: Mapping[str, Any]) -> Channel:
    if fields.get("channel") not in _CHANNELS:
        raise ValueError(f"`channel` is one of {', '.join(_CHANNELS)}")
    return Channel(fields["channel"])


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is an object")
    return value


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"`{what}` is a list")
    return value


def _text(fields: Mapping[str, Any], name: str, default: str) -> str:
    return _sent_text(fields.get(name, default), f"`{name}` is a text")


def _sent_text(value: object, what: str) -> str:
    """JSON can name half a character, which has no bytes."""
    if not isinstance(value, str) or any("\ud800" <= sign <= "\udfff" for sign in value):
        raise ValueError(what)
    return value


def _texts(value: object, what: str) -> list[str]:
    return [_sent_text(item, f"`{what}` holds texts") for item in _list(value, what)]


def _bytes(value: object, what: str) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"`{what}` is base64")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"`{what}` is no base64") from None
