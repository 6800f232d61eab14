"""Cases of a guard test, a JSON line each, and their score. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)

from belljar.dataclass import dataclass
from belljar.errors import PolicyError
from belljar.signals.streams import StreamScanner
from belljar.signals.values import Channel, Scanned
from belljar.units import printable

MAX_LINE_BYTES: Final = 32 << 20
MAX_FILE_BYTES: Final = 1 << 30
MAX_CASES: Final = 100_000
MAX_STEPS: Final = 1000
_HINT: Final = "docs/guard.md shows the format"
_PAYLOADS: Final[Mapping[Channel, str]] = {
    Channel.HTTP: "http",
    Channel.DNS: "names",
    Channel.WEBSOCKET: "messages",
}  # Of all others: `data`.


def _is_tested(channel: Channel) -> Channel:
    if channel is Channel.STREAM:
        raise ValueError("no case is sent as a raw stream")
    return channel


def _text(value: str) -> str:
    value.encode()  # JSON can name half a character, which has no bytes
    return value


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ValueError("base64 is needed")
    return base64.b64decode(value, validate=True)


def _message(value: object) -> object:
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return _bytes(value["base64"])
    return value


_Channel = Annotated[Channel, AfterValidator(_is_tested)]
_Text = Annotated[str, AfterValidator(_text)]
_Bytes = Annotated[bytes, PlainValidator(_bytes)]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True)


class Request(_Line):
    """An HTTP request."""

    method: _Text = "GET"
    url: _Text = Field(min_length=1)
    headers: tuple[tuple[_Text, _Text], ...] = ()
    body: _Bytes = Field(default=b"", validation_alias="body_base64")


class Step(_Line):
    """One thing that is sent.

    By channel it has `http`, `names` (DNS, in order), `messages` (WebSocket) or `data`.
    """

    channel: _Channel
    http: Request | None = None
    names: tuple[_Text, ...] = ()
    messages: tuple[Annotated[_Text | bytes, BeforeValidator(_message)], ...] = ()
    data: _Bytes = Field(default=b"", validation_alias="data_base64")

    @model_validator(mode="after")
    def _has_one_payload(self) -> Self:
        wanted = _PAYLOADS.get(self.channel, "data")
        if self.model_fields_set != {"channel", wanted} or getattr(self, wanted) is None:
            name = type(self).model_fields[wanted].validation_alias or wanted
            raise ValueError(f"channel `{self.channel}` has `{name}`, and nothing else is sent")
        return self


class Case(_Line):
    """What is sent, and what must be found. `cls`: "" for any."""

    id: _Text
    expect: Literal["flag", "pass"]
    cls: _Text = Field(default="", validation_alias="class")
    channel: _Channel
    steps: tuple[Step, ...] = Field(min_length=1, max_length=MAX_STEPS)

    @property
    def flags(self) -> bool:
        """Whether it must be flagged."""
        return self.expect == "flag"

    @model_validator(mode="before")
    @classmethod
    def _in_steps(cls, line: dict[str, Any]) -> dict[str, Any]:
        """One payload is one step; the case or each step has a channel."""
        sent = {name: line[name] for name in (*_PAYLOADS.values(), "data_base64") if name in line}
        if sent and "steps" in line:
            raise ValueError("a case with `steps` has no payload of its own")
        steps = line.get("steps", [sent])
        if isinstance(steps, list):
            if steps and isinstance(steps[0], dict) and "channel" in steps[0]:
                line = {"channel": steps[0]["channel"], **line}
            channel = {"channel": line.get("channel")}
            steps = [channel | step if isinstance(step, dict) else step for step in steps]
        return {name: line[name] for name in line if name not in sent} | {"steps": steps}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was found. `problem`: of an incomplete scan."""

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
    """Rates of many cases; without cases the best."""

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
        }


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
            case = _case(line, number)
            if case.id in cases:
                raise ValueError(f"the id {case.id!r} is another case's already")
        except (ValueError, RecursionError) as error:
            what = str(error)
            if isinstance(error, ValidationError):
                fault = error.errors(include_url=False)[0]
                what = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}".removeprefix(": ")
            raise PolicyError(
                f"no case: {printable(what, max_chars=300)}", where=f"{source}:{number}", hint=_HINT
            ) from None
        cases[case.id] = case
        if len(cases) > MAX_CASES:
            raise PolicyError(f"more than {MAX_CASES} cases", where=source, hint="split the file")
    if not cases:
        raise PolicyError("there is no case in it", where=source, hint=_HINT)
    return tuple(cases.values())


def _case(line: bytes, number: int) -> Case:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"a line has at most {MAX_LINE_BYTES >> 20} MiB")
    value = json.loads(line.decode(), object_pairs_hook=_each_once)
    if not isinstance(value, dict):
        raise ValueError("a line is one JSON object")
    # By its names in the file only: `data` is none of them
    return Case.model_validate({"id": f"line {number}"} | value, by_alias=True, by_name=False)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return found
