"""The events of a cell: what each says, whose word it is, and that the ledger takes it."""

from __future__ import annotations

import errno
import json
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import guest as g
from tests.fakes.wires import with_exec

from belljar.cell.base import CommandRecord, RecordedOperation, text
from belljar.channel import ExecOutput, ExecRequest
from belljar.channel.frames import Result
from belljar.channel.outcomes import OutputTexts, output_of
from belljar.events import Actor, Event, JsonValue, Kind, Trust
from belljar.ledger.chain import canonical
from belljar.ledger.schema import check_data

OPERATION = RecordedOperation(cell_id="c-0123456789ab", op=7, actor=Actor.HARNESS)
ANY_TEXT = st.text(st.characters(), max_size=20)


def checked(event: Event) -> dict[str, JsonValue]:
    """The event's data, which the schema allows and UTF-8 JSON can carry."""
    check_data(event.kind, dict(event.data))
    json.dumps(event.data, ensure_ascii=False, allow_nan=False).encode()
    assert event.data.get("op") == 7
    assert (event.cell_id, event.actor) == ("c-0123456789ab", Actor.HARNESS)
    return dict(event.data)


LIVE = SimpleNamespace(
    oom_kills=lambda: 0,
    refused_forks=lambda: 0,
    disk_full=lambda: False,
    processes_full=lambda: False,
)


def recorded(request: ExecRequest, output: ExecOutput | None = None) -> list[Event]:
    """The events of a command that began, and perhaps ended with this outcome."""
    events = list[Event]()
    recorder = cast("Any", SimpleNamespace(record=events.append))
    command = CommandRecord(OPERATION, request, recorder, cast("Any", LIVE))
    if output is not None:
        command.end(output)
    return events


def test_a_start_names_the_environment_but_not_its_values() -> None:
    """Values may be secrets: names and one digest, which differs when a value does."""
    request = ExecRequest(
        argv=["env"], env={"TOKEN": "hunter2", "A": "b"}, cwd="/w", user="u", timeout_s=3
    )
    data = checked(*recorded(request))
    assert "hunter2" not in json.dumps(data)
    said = {"argv": ["env"], "env_names": ["A", "TOKEN"], "cwd": "/w", "user": "u", "timeout_s": 3}
    assert data == data | said | {"stdin": False, "pty": False}
    other = ExecRequest(argv=["env"], env={"TOKEN": "hunter3", "A": "b"})
    assert checked(*recorded(other))["env_sha256"] != data["env_sha256"]


@given(argv=st.lists(ANY_TEXT | st.binary(max_size=20), min_size=1), name=ANY_TEXT, path=ANY_TEXT)
def test_whatever_is_asked_can_be_recorded(argv: list[str | bytes], name: str, path: str) -> None:
    """Lone surrogates and bytes that are no UTF-8 are made visible, never refused."""
    env = {name.encode("utf-8", "replace").decode(): "v"}
    data = checked(*recorded(ExecRequest(argv=argv, env=env, cwd=path)))
    assert isinstance(data["argv"], list)
    assert len(data["argv"]) == len(argv)
    checked(OPERATION.event(Kind.FILE_READ_STARTED, {"path": text(path), "max_bytes": 1}))
    checked(OPERATION.failed(Kind.EXEC_FAILED, ValueError(path)))


def test_the_most_that_a_guest_may_say_can_be_recorded() -> None:
    """Both of its largest counts and what the host dropped itself, added in one number."""
    most = (1 << 51) - 1
    payload = g.result_payload(flags=8, dropped=(most, most), duration_ns=most)
    (ended,) = with_exec().feed(g.frame(g.RESULT, 1, payload))
    assert isinstance(ended, Result)
    kept = OutputTexts(stdout_dropped_bytes=1 << 50, stderr_dropped_bytes=1 << 50)
    output = output_of(ended, kept)
    for event in recorded(ExecRequest(argv=["a"]), output):
        canonical(checked(event))


def test_whose_word_a_limit_is() -> None:
    """What the host saw too is the host's; the agent's alone is the guest's."""
    output = ExecOutput(
        returncode=0, code=0, processes_full=True, disk_full=True, host_limits=("disk",)
    )
    events = recorded(ExecRequest(argv=["a"]), output)[1:-1]
    assert {(checked(event)["limit"], event.trust) for event in events} == {
        ("processes", Trust.GUEST_REPORTED),
        ("disk", Trust.HOST_OBSERVED),
    }
    (event,) = OPERATION.limits_hit(OSError(errno.ENOSPC, "full"), is_write=True)
    assert (checked(event)["limit"], event.trust) == ("disk", Trust.GUEST_REPORTED)
    assert list(OPERATION.limits_hit(OSError(errno.EACCES, "no"), is_write=True)) == []
    assert list(OPERATION.limits_hit(OSError(errno.ENOSPC, "full"), is_write=False)) == []
