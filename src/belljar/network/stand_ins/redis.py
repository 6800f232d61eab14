"""A decoy Redis (RESP): it logs in, and refuses commands."""

from __future__ import annotations

import hmac
import re
from typing import Final

from belljar.network.stand_ins.conversation import Conversation, Presented, ServiceStep, stream_app
from belljar.network.stand_ins.web import StandInContext, StreamApp

# A real server takes more. A longer command is refused as one that a real server finds too long.
MAX_COMMAND_BYTES: Final = 64 << 10
MAX_ARGUMENTS: Final = 1024
_NUMBER: Final = re.compile(rb"-?[0-9]{1,9}")  # A longer one is beyond any bound
_WRONG_PASSWORD: Final = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
# To these a client that has logged in gets its reply; clients send them by themselves.
_REPLIES: Final = {
    b"ping": b"+PONG\r\n",
    b"select": b"+OK\r\n",
    b"client": b"+OK\r\n",
    b"command": b"*0\r\n",
}


def read_command(data: bytes | bytearray) -> tuple[list[bytes], int] | int:
    """Return words and length, or its least size. Raises `ValueError`, a reply."""
    if not data.startswith(b"*"):
        end = data.find(b"\n", 0, MAX_COMMAND_BYTES)
        if end < 0 and len(data) >= MAX_COMMAND_BYTES:
            raise ValueError("too big inline request")
        return len(data) + 1 if end < 0 else (bytes(data[:end]).split(), end + 1)
    words: list[bytes] = []
    count, at = 1, 0
    while len(words) < count:
        end = data.find(b"\n", at, at + 32)
        if end < 0:
            if len(data) >= at + 32:
                raise ValueError("too big count string")
            return len(data) + 1
        mark, number = data[at : at + 1], data[at + 1 : end].removesuffix(b"\r")
        size = int(number) if _NUMBER.fullmatch(number) else MAX_COMMAND_BYTES
        if at == 0:
            if size > MAX_ARGUMENTS:
                raise ValueError("invalid multibulk length")
            count, at = size, end + 1
            continue
        if mark != b"$":
            raise ValueError(f"expected '$', got '{mark.decode('latin-1')}'")
        at = end + 1 + size + 2
        if size < 0 or at > MAX_COMMAND_BYTES:
            raise ValueError("invalid bulk length")
        if len(data) < at:
            return at
        words.append(bytes(data[end + 1 : at - 2]))
    return words, at


class RedisSession(Conversation):
    def __init__(self, password: bytes) -> None:
        super().__init__()
        self._password = password
        self._needed = 1  # So many bytes the first command in the buffer has at least.
        self._is_inside = False

    def next_step(self) -> ServiceStep | None:
        if len(self.rest) < self._needed:
            return None
        try:
            found = read_command(self.rest)
        except ValueError as problem:
            reply = f"-ERR Protocol error: {problem}\r\n".encode("ascii", "replace")
            return ServiceStep("", self.take(), reply, close=True)
        if isinstance(found, int):
            self._needed = found
            return None
        words, length = found
        raw, self._needed = self.take(length), 1
        # Real servers pass over an empty command; here it is a step, so that it is on record.
        return self._answer(words, raw) if words else ServiceStep("", raw)

    def _answer(self, words: list[bytes], raw: bytes) -> ServiceStep:
        name, arguments, presented = words[0].lower(), words[1:], None
        if name == b"quit":
            reply = b"+OK\r\n"
        elif name == b"auth" and 1 <= len(arguments) <= 2:
            # The user that a server has before others are made.
            user, password = (b"default", *arguments)[-2:]
            ok = hmac.compare_digest(password, self._password) and user == b"default"
            self._is_inside |= ok
            reply = b"+OK\r\n" if ok else _WRONG_PASSWORD
            presented = Presented(user.decode("utf-8", "replace"), b" ".join(arguments), ok)
        elif name == b"hello":  # of RESP3, from which a client goes back
            reply = b"-NOPROTO unsupported protocol version\r\n"
        elif not self._is_inside:
            reply = b"-NOAUTH Authentication required.\r\n"
        else:
            known = re.sub(rb"[^a-z0-9._-]", b"?", name[:128])
            refused = b"-NOPERM User default has no permissions to run the '%s' command\r\n" % known
            reply = _REPLIES.get(name, refused)
        shown = name.decode("utf-8", "replace")
        return ServiceStep(shown, raw, reply, presented, close=name == b"quit")


def make(context: StandInContext) -> StreamApp:
    password = str(context.settings["password"]).encode()
    return stream_app(context, "redis", lambda: RedisSession(password))
