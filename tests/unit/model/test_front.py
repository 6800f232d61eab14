"""What a client of `belljar model serve` may ask."""

from __future__ import annotations

from typing import cast

import anyio
import h11
import pytest
from anyio.abc import ByteStream

from belljar.model.front import RefusedError, answer_client, check_request
from belljar.model.serve import ModelCell

TOKEN = "the-token"


def request(*, token: str | None = TOKEN, host: str = "127.0.0.1:4000") -> h11.Request:
    """A request of a client."""
    headers = [("Host", host), *([("Authorization", f"Bearer {token}")] if token else [])]
    return h11.Request(method="POST", target="/v1/models", headers=headers)


@pytest.mark.parametrize("host", ["127.0.0.1:4000", "localhost", "localhost:4000"])
def test_the_api_is_open_to_whoever_has_the_token(host: str) -> None:
    """And to nobody else, also with a part of it."""
    check_request(request(host=host), TOKEN)
    for token in (None, "", "the-toke", "the-token2", "Bearer"):
        with pytest.raises(RefusedError) as caught:
            check_request(request(host=host, token=token), TOKEN)
        assert caught.value.args[0] == 401


@pytest.mark.parametrize("host", ["evil.test", "127.0.0.1.evil.test:80", "[::1]", "10.0.0.1", ""])
def test_a_name_that_a_page_made_mean_this_host_is_refused(host: str) -> None:
    """DNS rebinding, whatever the token."""
    with pytest.raises(RefusedError) as caught:
        check_request(request(host=host), TOKEN)
    assert caught.value.args[0] == 421


class Asking(ByteStream):
    """A client that sends this and keeps what it gets."""

    def __init__(self, sent: bytes) -> None:
        self._sent, self.got = sent, b""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """All at once, then the end."""
        if not self._sent:
            raise anyio.EndOfStream
        part, self._sent = self._sent[:max_bytes], self._sent[max_bytes:]
        return part

    async def send(self, item: bytes) -> None:
        """Keep it."""
        self.got += item

    async def send_eof(self) -> None:
        """Nothing."""

    async def aclose(self) -> None:
        """Nothing."""


HEAD = b"Host: localhost\r\nAuthorization: Bearer the-token\r\n"
REFUSED = {
    "a page's question whether it may ask": (
        b"OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"401",
    ),
    "another endpoint": (b"GET /slots HTTP/1.1\r\n" + HEAD + b"\r\n", b"404"),
    "a path with a query": (b"GET /v1/models?a HTTP/1.1\r\n" + HEAD + b"\r\n", b"404"),
    "another method": (b"DELETE /v1/models HTTP/1.1\r\n" + HEAD + b"\r\n", b"404"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", REFUSED)
async def test_a_refusal_reaches_no_cell_and_invites_no_page(name: str) -> None:
    """It has a status, JSON, and no header by which a browser's page may read it."""
    sent, status = REFUSED[name]
    client = Asking(sent)
    await answer_client(client, cast("ModelCell", None), TOKEN)
    head, _, body = client.got.partition(b"\r\n\r\n")
    assert head.split(b" ")[1] == status
    assert b"access-control" not in head.lower()
    assert b'"message"' in body
