"""The gateway's end of the event socket, against the owner's decoder."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable

import pytest

from belljar.capture import body_of
from belljar.events import Kind
from belljar.network.gateway.config import Bounds
from belljar.network.gateway.reporter import Reporter, TooManyRequestsError
from belljar.network.ipc import ALIVE, DIAL, ENDED, EventDecoder, Item, encode_ack, encode_reply


class LostError(Exception):
    """The owner is gone."""


def lost() -> None:
    raise LostError


Scene = Callable[[Reporter, socket.socket, asyncio.TaskGroup], Awaitable[None]]


def run(scene: Scene, **bounds: float) -> None:
    """A scene with a reporter that listens, and the owner's end of its socket."""

    async def whole() -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with here, there:
            there.setblocking(False)
            reporter = Reporter(here, Bounds(**bounds), lost)  # type: ignore[arg-type]
            reporter.start()
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                await scene(reporter, there, group)

    asyncio.run(whole())


async def heard(sock: socket.socket, decoder: EventDecoder) -> Item:
    while True:
        message = decoder.feed(await asyncio.get_running_loop().sock_recv(sock, 1 << 17))
        if message is not None and message.kind not in (ALIVE, ENDED):
            return message


def item(number: int, size: int = 0) -> Item:
    return Item(
        Kind.NETWORK_ATTEMPT,
        {"stand_in": "s", "what": str(number)},
        (body_of("b", bytes(size), size),) if size else (),
    )


async def until_ended(sock: socket.socket) -> tuple[list[Item], Item]:
    decoder = EventDecoder()
    events: list[Item] = []
    while True:
        message = decoder.feed(await asyncio.get_running_loop().sock_recv(sock, 1 << 17))
        if message is not None and message.kind == ENDED:
            return events, message
        if message is not None and message.kind != ALIVE:
            events.append(message)


def test_what_is_cut_while_it_waits_for_room_is_reported() -> None:
    """What he had to tell goes up all the same, once; who still waits at the end is counted."""

    async def scene(reporter: Reporter, there: socket.socket, group: asyncio.TaskGroup) -> None:
        reporter.post(item(0, 200))
        cut, waiting = (group.create_task(reporter.record(item(number))) for number in (1, 2))
        await asyncio.sleep(0)
        cut.cancel()
        await asyncio.wait([cut])
        assert cut.cancelled()
        await reporter.end(0, asyncio.get_running_loop().time() + 30)
        events, ended = await until_ended(there)
        assert ([message.data["what"] for message in events], ended.data["unreported"]) == (
            ["0", "1"],
            1,
        )
        waiting.cancel()

    run(scene, unrecorded_bytes=100, alive_every_s=60)


def test_a_question_counts_until_it_is_answered() -> None:
    """Though nobody waits for it any more; one over the bound never reaches the owner."""

    async def scene(reporter: Reporter, there: socket.socket, group: asyncio.TaskGroup) -> None:
        decoder = EventDecoder()
        asking = group.create_task(reporter.dial(*WHERE))
        left = (await heard(there, decoder)).id
        asking.cancel()
        other = group.create_task(reporter.ask("chat", b"q"))
        number = (await heard(there, decoder)).id
        with pytest.raises(TooManyRequestsError):
            await reporter.dial(*WHERE)
        for id_ in (number, left):
            for datagram in encode_reply(id_, b"late"):
                there.send(datagram)
        assert await other == b"late"

    run(scene, questions=2)


WHERE = ("real.example", 443, "upstream:real.example")


async def no_socket(reporter: Reporter) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        await reporter.dial(*WHERE)
    return str(caught.value)


def test_a_dial_is_answered_by_a_socket_or_a_reason() -> None:
    """The descriptor beside the answer's head is the asker's."""

    async def scene(reporter: Reporter, there: socket.socket, group: asyncio.TaskGroup) -> None:
        decoder = EventDecoder()
        first = group.create_task(reporter.dial(*WHERE))
        message = await heard(there, decoder)
        asked = dict(zip(("host", "port", "stand_in"), WHERE, strict=True))
        assert (message.data["what"], json.loads(message.bodies[0].content)) == (DIAL, asked)
        first.cancel()
        second = group.create_task(reporter.dial(*WHERE))
        number = (await heard(there, decoder)).id
        for id_, word in ((message.id, b"late"), (number, b"mine")):
            ours, theirs = socket.socketpair()
            with ours, theirs:
                socket.send_fds(there, encode_reply(id_, b"")[:1], [theirs.fileno()])
                ours.send(word)
        with await second as end:
            assert not end.getblocking()
            assert end.recv(9) == b"mine"
        refused = group.create_task(no_socket(reporter))
        for datagram in encode_reply((await heard(there, decoder)).id, b"private", ok=False):
            there.send(datagram)
        assert await refused == "private"

    run(scene)


@pytest.mark.parametrize(
    "word", [None, b"{", b"[]", b'{"ack": 77}', b'{"ack": "1"}', b'{"answer": 1}']
)
def test_an_owner_that_is_gone_or_mad_ends_the_gateway(word: bytes | None) -> None:
    """The end of the socket, or a word that can't be, calls `on_lost`."""

    async def scene(_: Reporter, there: socket.socket, _group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        end: asyncio.Future[object] = loop.create_future()
        loop.set_exception_handler(
            lambda _, told: None if end.done() else end.set_result(told["exception"])
        )
        if word is None:
            there.close()
        else:
            there.send(word)
        assert isinstance(await asyncio.wait_for(end, 30), LostError)

    run(scene)


def test_an_event_is_recorded_when_it_is_acknowledged_and_not_before() -> None:
    """`record` returns after the owner's word, whatever the order in which words come."""

    async def scene(reporter: Reporter, there: socket.socket, group: asyncio.TaskGroup) -> None:
        tasks = [
            group.create_task(reporter.record(item(number, 70_000 * number))) for number in range(3)
        ]
        decoder = EventDecoder()
        messages = [await heard(there, decoder) for _ in tasks]
        assert not any(task.done() for task in tasks)
        there.send(encode_ack(messages[1].id))
        await tasks[1]
        assert [task.done() for task in tasks] == [False, True, False]
        for number in (2, 0):
            there.send(encode_ack(messages[number].id))

    run(scene)
