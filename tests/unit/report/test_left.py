"""What a run's report says of what left this host."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.report.stories import ENDED, HOSTILE, line, planned, taken

from belljar.events import Kind
from belljar.ledger.schema import Line
from belljar.report.left import STAYS, Destination, Left, LeftGatherer, Way

PROVIDER = "openai/gpt-4o"
PLANNED = planned("c1")
MODEL_CELL = planned("m1", model={"name": "small", "weights": "w"})


def dial(**data: Any) -> Line:  # noqa: ANN401 - JSON values
    to = {"host": "real.example", "port": 443, "address": "93.184.215.1"}
    said = {**to, "verdict": "dialled", "reason": "why", "problem": "", **data}
    return line(Kind.NETWORK_UPSTREAM, **said)


def call(model: str, **data: Any) -> Line:  # noqa: ANN401 - JSON values
    said = {"model": model, "address": "", "bytes": 100, "guarded": True, **data}
    return line(Kind.MODEL_CALLED, "c1", **said)


def hit(place: str, to: str, action: str, cls: str = "iban") -> Line:
    said = {"class": cls, "action": action, "digest": "0" * 64, "start": 0, "end": 9}
    return line(Kind.GUARD_HIT, "c1", **said, place=place, channel=place, decoding=[], to=to)


def evaluated(**data: Any) -> Line:  # noqa: ANN401 - JSON values
    said = {"interrupted": False, "stopped": False, "errors": [], "connections": {}, **data}
    return line(Kind.RUN_EVALUATED, None, **said)


def ranges_end(**sent: int) -> Line:
    """The end of the range, with what went to each host."""
    hosts = {name.replace("_", "."): count for name, count in sent.items()}
    return line(Kind.RANGE_DESTROYED, **ENDED, sent_bytes=hosts)


def left_of(*lines: Line, is_whole: bool = True) -> Left:
    return taken(lines, LeftGatherer()).end(is_whole=is_whole)


@pytest.mark.promise("7.6")
@pytest.mark.parametrize("provider", STAYS)
def test_a_model_that_stays_leaves_nothing(provider: str) -> None:
    """A script's and a cell's model get protected data, and nothing left this host."""
    model = f"{provider}/model.yaml"
    left = left_of(MODEL_CELL, call(model), hit("model", model, "flag"), evaluated())
    assert (left.claim, left.destinations, left.unknown) == ("nothing", (), ())
    assert left.to_json()["lines"] == []


@pytest.mark.promise("7.6")
@pytest.mark.parametrize("model", [PROVIDER, "unheard-of/m", "mockllm2/m", "Belljar/m", "", "x"])
def test_any_other_model_s_calls_leave(model: str) -> None:
    """A provider that is not named as one that stays counts as leaving."""
    left = left_of(call(model), evaluated())
    assert left.claim == "something"
    assert [(each.way, each.name) for each in left.destinations] == [(Way.MODEL, model)]


@pytest.mark.promise("7.6")
def test_calls_and_bytes_and_findings_are_added_up() -> None:
    """By destination; sent is told from redacted or stopped; what was not scanned is counted."""
    left = left_of(
        call(PROVIDER, address="proxy.example:8443"),
        hit("model", PROVIDER, "flag"),
        hit("model", PROVIDER, "redact"),
        hit("model", PROVIDER, "redact"),
        call(PROVIDER, address="proxy.example:8443", bytes=17, guarded=False),
        hit("output", "", "flag"),
        hit("range", "shop", "block"),
        evaluated(),
    )
    (to,) = left.destinations
    assert (to.addresses, to.calls, to.sent_bytes) == (["proxy.example:8443"], 2, 117)
    assert to.protected == {"iban": {"flag": 1, "redact": 2}}
    assert to.unscanned == 1
    assert "iban ×1 sent, iban ×2 redacted, can't tell of 1" in to.sentence()


@pytest.mark.promise("7.6")
def test_upstreams_are_gathered_by_host() -> None:
    """Connections and the kernel's count of bytes, look-ups too; what was refused went nowhere."""
    left = left_of(
        dial(verdict="looked_up", address=""),
        dial(),
        dial(),
        dial(verdict="failed", problem="no"),
        dial(verdict="refused", host="other.example", address=""),
        ranges_end(real_example=812, other_example=0),
        evaluated(connections={"8.8.8.8:53": 4}),
    )
    looked_up, real, process = left.destinations
    assert (real.calls, real.sent_bytes, real.addresses) == (2, 812, ["93.184.215.1"])
    assert (looked_up.way, looked_up.name, looked_up.calls) == (Way.PROCESS, "real.example", 1)
    assert (process.way, process.name, process.calls) == (Way.PROCESS, "8.8.8.8:53", 4)
    assert left.unknown == ()


STOPPED = [hit("model", PROVIDER, "stop"), hit("upstream", "upstream:a.example", "block")]
REFUSED = dial(verdict="refused", address="", problem="10.0.0.1 is not a public one")


@pytest.mark.promise("7.6")
@pytest.mark.parametrize(
    ("lines", "claim", "names"),
    [
        ([*STOPPED, evaluated()], "nothing", [PROVIDER, "a.example"]),
        ([REFUSED, evaluated()], "nothing", []),
        (
            [dial(verdict="looked_up", address=""), REFUSED, evaluated()],
            *("something", ["real.example"]),
        ),
        *(
            ([call("mockllm/model"), evaluated(connections={name: 1})], "something", [name])
            for name in ("api.example", "203.0.113.9:443", "others")
        ),
    ],
)
def test_what_left_is_told_from_what_was_stopped(
    lines: list[Line], claim: str, names: list[str]
) -> None:
    """A look-up or a connection of the process has left; what was stopped or refused has not."""
    left = left_of(*lines)
    assert (left.claim, [each.name for each in left.destinations]) == (claim, names)


@pytest.mark.promise("7.6")
def test_missing_evidence_is_never_nothing() -> None:
    """No end, nobody watched, programs, a proxy, no such model's cell, a record in doubt."""
    no_end = [call("mockllm/model")]
    unwatched = line(Kind.RUN_EVALUATED, None, interrupted=False, stopped=False, errors=[])
    for left in (
        Left(),
        left_of(),
        left_of(*no_end),
        left_of(*no_end, unwatched),
        left_of(*no_end, evaluated(host_processes={"curl": 1})),
        left_of(*no_end, evaluated(proxies=["https_proxy"])),
        left_of(call("belljar/model.yaml"), PLANNED, evaluated()),
        left_of(*no_end, evaluated(), is_whole=False),
    ):
        assert left.claim == "can't tell"
        assert len(left.unknown) == 1
        assert "nothing" not in "".join(left.to_json()["lines"])
    cut_off = left_of(dial(), evaluated())
    assert (cut_off.claim, cut_off.destinations[0].sent_bytes) == ("something", None)


@pytest.mark.promise("7.6")
@given(st.text(max_size=80))
def test_no_name_acts_on_the_reader_s_terminal(name: str) -> None:
    """Whatever stands on record."""
    for text in (name, HOSTILE):
        for way in Way:
            made = Destination(way=way, name=text, addresses=[text])
            made.protected[text] = Counter({text: 1})
            for said in (made.sentence(), "".join(Left(unknown=(text,)).to_json()["lines"])):
                assert "\x1b" not in said
                assert "\u202e" not in said
                assert "\n" not in said
