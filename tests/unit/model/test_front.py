"""What a client of `belljar model serve` may ask, and how a model cell ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from anyio.abc import ByteStream

from belljar.errors import ContainmentBreach, HostError
from belljar.model import serve
from belljar.model.http import Question
from belljar.model.serve import ModelCell, answer_client
from belljar.policy.load import policy_of

TOKEN = "the-token"


class Asking(ByteStream):
    """A client that sends this and keeps what it gets."""

    def __init__(self, sent: bytes) -> None:
        self._sent, self.got = sent, b""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if not self._sent:
            raise anyio.EndOfStream
        part, self._sent = self._sent[:max_bytes], self._sent[max_bytes:]
        return part

    async def send(self, item: bytes) -> None:
        self.got += item

    async def send_eof(self) -> None:
        """Nothing."""

    async def aclose(self) -> None:
        """Nothing."""


HOST = b"Host: localhost\r\n"
HEAD = HOST + b"Authorization: Bearer the-token\r\n"
REFUSED = {
    "a page's question whether it may ask": (b"OPTIONS /v1/models HTTP/1.1\r\n" + HOST, b"401"),
    "no token": (b"GET /v1/models HTTP/1.1\r\n" + HOST, b"401"),
    "a part of the token": (b"GET /v1/models HTTP/1.1\r\n" + HEAD[:-3] + b"\r\n", b"401"),
    "more than the token": (b"GET /v1/models HTTP/1.1\r\n" + HEAD[:-2] + b"2\r\n", b"401"),
    "another endpoint": (b"GET /slots HTTP/1.1\r\n" + HEAD, b"404"),
    "a path with a query": (b"GET /v1/models?a HTTP/1.1\r\n" + HEAD, b"404"),
    "another method": (b"DELETE /v1/models HTTP/1.1\r\n" + HEAD, b"404"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", REFUSED)
async def test_a_refusal_reaches_no_cell_and_invites_no_page(name: str) -> None:
    """It has a status, JSON, and no header by which a browser's page may read it."""
    sent, status = REFUSED[name]
    client = Asking(sent + b"\r\n")
    await answer_client(client, cast("ModelCell", None), TOKEN)
    head, _, body = client.got.partition(b"\r\n\r\n")
    assert head.split(b" ")[1] == status
    assert b"access-control" not in head.lower()
    assert b'"message"' in body


class Answering:
    """A model cell whose answer has two parts; notes what its client had when it was recorded."""

    def __init__(self, client: Asking) -> None:
        self.status, self.content_type = 200, b"text/event-stream"
        self._client, self._parts = client, [b"one", b"two"]
        self.had_when_recorded = b""

    @asynccontextmanager
    async def ask(self, question: Question) -> AsyncIterator[Answering]:
        yield self
        self.had_when_recorded = self._client.got

    async def next_part(self) -> bytes | None:
        return self._parts.pop(0) if self._parts else None


@pytest.mark.anyio
async def test_an_answer_ends_once_its_end_is_on_record() -> None:
    """A client that has a whole answer finds its event in the record."""
    client = Asking(b"GET /v1/models HTTP/1.1\r\n" + HEAD + b"\r\n")
    served = Answering(client)
    await answer_client(client, cast("ModelCell", served), TOKEN)
    assert served.had_when_recorded.endswith(b"two\r\n")
    assert client.got == served.had_when_recorded + b"0\r\n\r\n"


MODEL = {"weights": {"sha256": "ab" * 32}}


@pytest.mark.anyio
@pytest.mark.parametrize("fails", [False, True])
async def test_a_breach_outweighs_weights_that_were_changed(
    monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """Whether the block was left well or not: it is what the caller ends with."""

    async def nothing(*_: object) -> None:
        pass

    async def probed(_cell: object, _run: object, phase: str) -> None:
        if phase == "end":
            raise ContainmentBreach("a way out")

    def verified(*_: object, has_run: bool = False, **__: object) -> Any:  # noqa: ANN401 - fake weights
        if has_run:
            raise HostError("a file was changed")
        return weights

    @asynccontextmanager
    async def opened(*_: object, **__: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(tier="container", connect=nothing, start=nothing, destruction=None)

    weights = SimpleNamespace(served="", name="w")
    patches = {
        "find_weights": lambda *_, **__: weights,
        "verify_weights": verified,
        "open_cell": opened,
        "_probe": probed,
        "_wait_healthy": nothing,
        "HealthWatch": lambda *_: SimpleNamespace(take_baseline=nothing, look=nothing),
    }
    for name, double in patches.items():
        monkeypatch.setattr(serve, name, double)
    policy = policy_of({"belljar": 1, "risk": "low", "model": MODEL})
    run: Any = SimpleNamespace(recorder=SimpleNamespace(record=None))

    async def use() -> None:
        async with serve.open_model(policy, run=run):
            if fails:
                raise ValueError("the block failed")

    with pytest.raises(ContainmentBreach):
        await use()
