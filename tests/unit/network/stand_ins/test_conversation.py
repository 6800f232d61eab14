"""Steps of a session on a stream."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

from tests.fakes.registries import Ledger, context_for, served_stream

from belljar.network.stand_ins.conversation import MAX_REPLY_BYTES, Step, converse

HALF = b"x" * (MAX_REPLY_BYTES // 2 + 1)


class Lines:
    """Answers each byte by many; `q` ends."""

    rest = b""

    def feed(self, data: bytes) -> Iterator[Step]:
        """A step a byte."""
        for at, byte in enumerate(data):
            raw = bytes([byte])
            self.rest = data[at + 1 :]
            yield Step(name=raw.decode(), raw=raw, reply=HALF, close=raw == b"q")


def test_long_replies_are_sent_as_they_come() -> None:
    """Commands of one read are on record together as long as their replies are short; after the
    last word nothing is answered. No byte is missing on record."""
    ledger = Ledger()
    context = context_for(Path("/nonexistent"), ledger)
    sent = b"a" * 9 + b"q" + b"b" * 9
    with (
        served_stream(lambda reader, writer, cell: converse(context, "x", Lines(), (reader, writer), cell)) as port,
        socket.create_connection(("127.0.0.1", port), timeout=30) as client,
    ):
        client.sendall(sent)
        said = b"".join(iter(lambda: client.recv(65536), b""))
    assert len(said) == 10 * len(HALF)
    assert b"".join(body.content for [body] in ledger.bodies) == sent
    assert {event["count"] for event in ledger.attempts} <= {1, 2, 8}
