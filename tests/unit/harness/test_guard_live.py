"""Which outcome a live case has, and what its cell's client is told. Pure."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from tests.unit.report.stories import RANGE, line

from belljar.events import Kind
from belljar.harness.guard_live import CLIENT, as_input, found_by_case, live_policy
from belljar.host.settings import resolve_here
from belljar.policy.guarding import Action, Place
from belljar.signals.cases import Case, Request, Step
from belljar.signals.values import Channel

PLANNED: dict[str, Any] = {
    "tier": "container",
    "emulated": False,
    "policy_sha256": "",
    "layers": [],
}
HIT: dict[str, Any] = {"action": "flag", "digest": "0" * 64, "start": 0, "end": 9, "decoding": []}


def case(id: str, channel: Channel) -> Case:  # noqa: A002 - the field's name
    """One that must be flagged."""
    step = (
        Step(channel=channel, http=Request(url="/"))
        if channel is Channel.HTTP
        else Step(channel=channel, data=b"x")
    )
    return Case(id=id, expect="flag", channel=channel, steps=(step,))


def test_an_outcome_is_what_the_cases_own_cell_and_range_had() -> None:
    """Not what another case's had, and not what was found at another place than it went to."""
    cells = {"c1": case("sent", Channel.HTTP), "c2": case("printed", Channel.OUTPUT)}
    lines = [
        line(Kind.CELL_PLANNED, "c1", range=RANGE, **PLANNED),
        line(Kind.CELL_PLANNED, "c2", range="r-2", **PLANNED),
        line(Kind.GUARD_HIT, place="range", channel="http", **HIT, **{"class": "card"}),
        line(Kind.GUARD_HIT, "c1", place="output", channel="output", **HIT, **{"class": "iban"}),
        line(Kind.GUARD_HIT, "c2", place="output", channel="output", **HIT, **{"class": "iban"}),
        line(Kind.GUARD_HIT, "c3", place="output", channel="output", **HIT, **{"class": "email"}),
        line(Kind.GUARD_UNSCANNED, "c2", place="output", channel="output", reason="time", bytes=1),
    ]
    assert found_by_case(lines, cells) == {"sent": (("card",), ""), "printed": (("iban",), "time")}


@pytest.mark.parametrize(
    "step",
    [
        Step(
            channel=Channel.HTTP,
            http=Request(method="PUT", url="/a?b=c", headers=(("X", "y"),), body=b"\xff"),
        ),
        Step(channel=Channel.DNS, names=("a.example",)),
        Step(channel=Channel.WEBSOCKET, messages=("text", b"\0bytes")),
        Step(channel=Channel.SMTP, data=b"Subject: x\r\n\r\ny"),
    ],
)
def test_each_step_is_said_whole(step: Step) -> None:
    """As JSON; bytes are base64. The client is Python."""
    said = json.loads(as_input(step))
    compile(CLIENT, "client", "exec")
    assert said["channel"] == step.channel
    assert tuple(said["names"]) == step.names
    body = step.data if step.http is None else step.http.body
    assert base64.b64decode(said["data"]) == body
    opcodes = [1 if isinstance(message, str) else 2 for message in step.messages]
    assert [kind for kind, _ in said["messages"]] == opcodes
    if step.http is not None:
        assert (said["method"], said["url"]) == (step.http.method, step.http.url)


@pytest.mark.parametrize(
    "source", ["low", {"belljar": 1, "risk": "low", "guard": {"action": {"output": "stop"}}}]
)
def test_a_case_stops_nothing_and_has_a_network_of_its_own(source: str | dict[str, Any]) -> None:
    """Of a preset and of any policy; its guard looks for the same."""
    loaded = resolve_here(source)
    made = live_policy(loaded).policy
    assert made.guard_rules.action(Place.OUTPUT) is Action.FLAG
    assert made.guard_rules.protect == loaded.policy.guard_rules.protect
    assert made.network is not None
    assert not made.decoys
