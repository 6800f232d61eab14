"""Steps of a session on a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.registries import Ledger, context_for

from belljar.network.stand_ins.conversation import Conversation, Presented, ServiceStep, stream_app


class Gone:
    """What a client sent that has left: nothing can be sent to it."""

    def __init__(self, sent: bytes) -> None:
        self._pieces = [sent, b""]

    async def receive(self) -> bytes:
        return self._pieces.pop(0)

    async def send(self, data: bytes) -> None:
        """The client is seen to have left at the first reply."""
        if data:
            raise ConnectionResetError


class Script(Conversation):
    def __init__(self, steps: Iterator[ServiceStep]) -> None:
        super().__init__()
        self._steps = steps

    def feed(self, _data: bytes) -> Iterator[ServiceStep]:
        return self._steps


async def _converse(steps: Iterator[ServiceStep], sent: bytes, ledger: Ledger) -> None:
    context = context_for(Path("/nonexistent"), ledger)
    serve = stream_app(context, "x", lambda: Script(steps))
    await serve(Gone(sent), "agent")


@pytest.mark.promise("5.6")
def test_a_client_that_leaves_at_once_leaves_its_login_on_record() -> None:
    """A login behind a command whose reply nobody takes is recorded as a login, once."""
    ledger = Ledger()
    login = Presented(user="u", credential=b"decoy", ok=False)
    steps = [
        ServiceStep(name="echo", raw=b"echo"),
        ServiceStep(name="auth", raw=b"auth", presented=login),
    ]
    asyncio.run(_converse(iter(steps), b"echoauth", ledger))
    assert [event["what"] for event in ledger.attempts] == ["command", "login"]
    assert [body.content for [body] in ledger.bodies] == [b"echo", b"decoy"]


@pytest.mark.promise("5.6")
def test_what_interrupts_a_session_loses_nothing_that_was_sent() -> None:
    """All bytes that the session was given are on record."""

    def steps() -> Iterator[ServiceStep]:
        yield ServiceStep(name="one", raw=b"one")
        raise RuntimeError("took too long")

    ledger = Ledger()
    with pytest.raises(RuntimeError):
        asyncio.run(_converse(steps(), b"one two", ledger))
    assert [body.content for [body] in ledger.bodies] == [b"one two"]
