"""The cases by which the egress guard is measured: a JSON line each, what is sent and what is found.

`tests/security/guard/cases.jsonl` has them; `corpus.py` beside it makes that file and shows the format.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from belljar.signals.streams import StreamScanner
from belljar.signals.values import Channel


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    url: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is sent, by its channel: a request, DNS names, messages or plain data."""

    channel: Channel
    http: Request | None
    names: tuple[str, ...]
    messages: tuple[str | bytes, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Case:
    """Steps in their order, and whether something must be found in them, of which class."""

    id: str
    flags: bool
    cls: str
    steps: tuple[Step, ...]

    @property
    def channel(self) -> Channel:
        return self.steps[0].channel


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """The classes that were found in a case; `problem` of an incomplete scan."""

    case: Case
    classes: tuple[str, ...]
    problem: str = ""

    @property
    def flagged(self) -> bool:
        """Whether it was found, as its class where it must be flagged as one."""
        wanted = self.case.cls if self.case.flags else ""
        return wanted in self.classes if wanted else bool(self.classes)

    @property
    def ok(self) -> bool:
        """Whether it is as expected; a scan that was cut short proves no absence."""
        return self.flagged == self.case.flags and not (self.problem and not self.case.flags)


@dataclass(frozen=True, slots=True)
class Score:
    cases: int
    failed: tuple[CaseOutcome, ...]
    precision: float
    recall: float
    false_positive_rate: float


def score(outcomes: Iterable[CaseOutcome]) -> Score:
    """Count them; there must be cases to flag, flagged ones, and others."""
    found = tuple(outcomes)
    true = sum(outcome.case.flags and outcome.flagged for outcome in found)
    false = sum(not outcome.case.flags and outcome.flagged for outcome in found)
    wanted = sum(outcome.case.flags for outcome in found)
    return Score(
        cases=len(found),
        failed=tuple(outcome for outcome in found if not outcome.ok),
        precision=true / (true + false),
        recall=true / wanted,
        false_positive_rate=false / (len(found) - wanted),
    )


def read_cases(content: bytes) -> tuple[Case, ...]:
    """Read JSON lines; raises `KeyError` or `ValueError` for a line that is no case."""
    return tuple(_case(json.loads(line)) for line in content.splitlines() if line.strip())


def _case(line: dict[str, Any]) -> Case:
    steps = [{"channel": line.get("channel"), **step} for step in line.get("steps", [line])]
    return Case(
        id=line["id"],
        flags={"flag": True, "pass": False}[line["expect"]],
        cls=line.get("class", ""),
        steps=tuple(_step(step) for step in steps),
    )


def _step(step: dict[str, Any]) -> Step:
    asked, request = step.get("http"), None
    if asked is not None:
        request = Request(
            method=asked.get("method", "GET"),
            url=asked["url"],
            headers=tuple((name, value) for name, value in asked.get("headers", ())),
            body=base64.b64decode(asked.get("body_base64", "")),
        )
    messages = step.get("messages", ())
    return Step(
        channel=Channel(step["channel"]),
        http=request,
        names=tuple(step.get("names", ())),
        messages=tuple(
            each if isinstance(each, str) else base64.b64decode(each["base64"]) for each in messages
        ),
        data=base64.b64decode(step.get("data_base64", "")),
    )


def feeds(step: Step) -> Iterator[tuple[str, bytes]]:
    if step.http is not None:
        headers = (f"{name}: {value}\r\n" for name, value in step.http.headers)
        yield "url", step.http.url.encode()
        yield "header", "".join(headers).encode()
        if step.http.body:
            yield "body", step.http.body
    for name in step.names:
        yield "label", name.encode()
    for message in step.messages:
        yield "message", message.encode() if isinstance(message, str) else message
    if step.data:
        yield "data", step.data


def scan_case(case: Case, stream: StreamScanner) -> CaseOutcome:
    results = [
        stream.feed(case.id, step.channel, part, data)
        for step in case.steps
        for part, data in feeds(step)
    ]
    stream.end(case.id)
    classes = dict.fromkeys(hit.cls for result in results for hit in result.hits)
    problems = (result.problem for result in results if not result.complete)
    return CaseOutcome(case=case, classes=tuple(classes), problem=next(problems, ""))
