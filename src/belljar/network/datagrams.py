"""JSON objects and descriptors on a sequenced unix socket, between processes of ours: bounded, one
object a datagram.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

MAX_MESSAGE_BYTES: Final = 128 << 10
MAX_DESCRIPTORS: Final = 250
_MAX_DOCUMENT_BYTES: Final = 16 << 20
_INT: Final = struct.Struct("@i")
_T = TypeVar("_T")


class Closed(Exception):  # noqa: N818 - an end, not an error
    """The other side is gone."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(to: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one object, and copies of the descriptors.

    Raises `Closed`, and `ValueError` for what is too large.
    """
    text = json.dumps(message, separators=(",", ":")).encode()
    if len(text) > MAX_MESSAGE_BYTES or len(fds) > MAX_DESCRIPTORS:
        raise ValueError(f"a message of {len(text)} bytes and {len(fds)} descriptors")
    try:
        if fds:
            socket.send_fds(to, [text], list(fds))
        else:
            to.send(text)
    except (BrokenPipeError, ConnectionResetError) as exc:
        raise Closed from exc


def receive(source: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next object, and its descriptors, which are the caller's to close.

    Raises `Closed`, and `ValueError` for what is no such message.

    A socket that doesn't block raises `BlockingIOError` when there is none.
    """
    text, fds, flags = _to_the_last(partial(_take, source))
    try:
        if not text:
            raise Closed
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ValueError("a message was cut off")
        message = json.loads(text)
        if not isinstance(message, dict):
            raise ValueError("a message that is no object")
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return message, fds


def receive_bytes(source: socket.socket, max_bytes: int) -> bytes:
    """The next datagram, whatever it is. Raises `Closed`."""
    datagram = _to_the_last(partial(source.recv, max_bytes))
    if not datagram:
        raise Closed
    return datagram


def _to_the_last(read: Callable[[], _T]) -> _T:
    """Of one that has ended with something unread the kernel tells that first, once, and only then
    what it had said.
    """
    try:
        return read()
    except ConnectionResetError:
        return read()


def _take(source: socket.socket) -> tuple[bytes, list[int], int]:
    """`socket.recv_fds` of Python 3.11 drops its flags, so descriptors would go on to whatever is
    started next.
    """
    room = socket.CMSG_LEN(MAX_DESCRIPTORS * _INT.size)
    text, ancillary, flags, _ = source.recvmsg(MAX_MESSAGE_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds += [
                number for (number,) in _INT.iter_unpack(data[: len(data) - len(data) % _INT.size])
            ]
    return text, fds, flags


def as_file(document: Mapping[str, Any]) -> int:
    """A descriptor of a file in memory that holds the document, for a process that is to be started
    with it. The caller closes it.
    """
    fd = new_file()
    try:
        fill(fd, document)
    except BaseException:
        os.close(fd)
        raise
    return fd


def new_file() -> int:
    """A descriptor of an empty file in memory. The caller closes it."""
    return os.memfd_create("document", os.MFD_CLOEXEC)


def fill(fd: int, document: Mapping[str, Any]) -> None:
    """Write the document into the file, which stays open."""
    with os.fdopen(os.dup(fd), "w") as file:
        file.write(json.dumps(document))  # json.dump would do it in Python, eight times as slow


def from_file(fd: int) -> dict[str, Any]:
    """The document of `as_file`; closes the descriptor. Raises `ValueError` when there is none."""
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        text = file.read(_MAX_DOCUMENT_BYTES + 1)
    if len(text) > _MAX_DOCUMENT_BYTES:
        raise ValueError("the document is too long")
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("no document")
    return document
