"""A decoy PostgreSQL (protocol 3): it logs in, and refuses queries."""

from __future__ import annotations

import hmac
import struct
from collections.abc import Mapping
from typing import Any, Final

from belljar.network.stand_ins.conversation import Conversation, Presented, ServiceStep, stream_app
from belljar.network.stand_ins.web import StandInContext, StreamApp

MAX_STARTUP_BYTES: Final = 10_000  # As the real server's.
# A real server takes more. A longer message is refused as one that a real server finds too long.
# A longer query is cut off: what came of it is on record, and the connection ends.
MAX_MESSAGE_BYTES: Final = 64 << 10
PROTOCOL: Final = 3 << 16  # 3.0: the upper half is the major version
# Versions that no protocol has: 1234.5679 and the next one.
ENCRYPTION_REQUESTS: Final = (80_877_103, 80_877_104)  # TLS and GSSAPI.
# Sent to each client that logs in; drivers decide by them how to quote and decode.
_PARAMETERS: Final = {
    "client_encoding": "UTF8",
    "server_version": "15.10 (Debian 15.10-0+deb12u1)",
    "standard_conforming_strings": "on",
}
_NAMES: Final = {
    "Q": "query", "P": "parse", "B": "bind", "D": "describe", "E": "execute", "C": "close",
    "S": "sync", "H": "flush", "X": "terminate",
}  # fmt: skip


def message(kind: str, body: bytes = b"") -> bytes:
    return kind.encode() + struct.pack("!i", len(body) + 4) + body


def text(value: str) -> bytes:
    return value.encode("utf-8", "replace").replace(b"\0", b"") + b"\0"


def error(code: str, what: str, severity: str = "ERROR") -> bytes:
    fields = (("S", severity), ("V", severity), ("C", code), ("M", what))
    return message("E", b"".join(name.encode() + text(value) for name, value in fields) + b"\0")


_READY: Final = message("Z", b"I")  # I: idle, in no transaction
# A role that has lost its grants gets this: the login is right, and nothing may be read.
_REFUSED: Final = error("42501", "permission denied for schema public")


class PostgresSession(Conversation):
    def __init__(self, settings: Mapping[str, Any], key: bytes) -> None:
        super().__init__()
        self._settings, self._key = settings, key
        self._presented_user: str | None = None  # None before the startup message.
        self._presented_database = ""
        self._is_inside = self._skips = False

    def next_step(self) -> ServiceStep | None:
        is_first = self._presented_user is None
        head = 4 if is_first else 5  # The first message has no letter.
        if len(self.rest) < head:
            return None
        (length,) = struct.unpack_from("!i", self.rest, head - 4)
        low, high = (8, MAX_STARTUP_BYTES) if is_first else (4, MAX_MESSAGE_BYTES)
        if not low <= length <= high:
            return self._fatal("", self.take(), "08P01", "invalid length")
        end = head - 4 + length
        if len(self.rest) < end:
            return None
        raw = self.take(end)
        if is_first:
            return self._begin(raw)
        return self._refuse(chr(raw[0]), raw) if self._is_inside else self._log_in(raw)

    @staticmethod
    def _fatal(
        name: str, raw: bytes, code: str, what: str, presented: Presented | None = None
    ) -> ServiceStep:
        return ServiceStep(name, raw, error(code, what, "FATAL"), presented, close=True)

    def _begin(self, raw: bytes) -> ServiceStep:
        (code,) = struct.unpack_from("!I", raw, 4)
        if code in ENCRYPTION_REQUESTS:
            return ServiceStep("encryption", raw, b"N")
        if code != PROTOCOL:
            what = f"unsupported frontend protocol {code >> 16}.{code & 0xFFFF}"
            return self._fatal("startup", raw, "0A000", what)
        words = raw[8:].split(b"\0")
        parameters = dict(zip(words[::2], words[1::2], strict=False))
        user = parameters.get(b"user", b"")
        if not user:
            return self._fatal("startup", raw, "28000", "no PostgreSQL user name specified")
        self._presented_user = user.decode("utf-8", "replace")
        self._presented_database = parameters.get(b"database", user).decode("utf-8", "replace")
        # 3: the password in clear, so that it is on record whole.
        return ServiceStep("startup", raw, message("R", struct.pack("!i", 3)))

    def _log_in(self, raw: bytes) -> ServiceStep:
        if raw[:1] != b"p":
            return self._fatal("", raw, "08P01", "expected password response")
        user, credential = self._presented_user or "", raw[5:]
        password = credential.partition(b"\0")[0]
        ok = hmac.compare_digest(password, str(self._settings["password"]).encode())
        ok = ok and user == self._settings["user"]
        presented = Presented(user, credential, ok)
        if not ok:
            what = f'password authentication failed for user "{user}"'
            return self._fatal("password", raw, "28P01", what, presented)
        if self._presented_database != self._settings["database"]:
            # After the password, as the real server looks.
            what = f'database "{self._presented_database}" does not exist'
            return self._fatal("password", raw, "3D000", what, presented)
        self._is_inside = True
        reply = message("R", struct.pack("!i", 0))
        told = (message("S", text(name) + text(value)) for name, value in _PARAMETERS.items())
        reply += b"".join(told)
        return ServiceStep("password", raw, reply + message("K", self._key) + _READY, presented)

    def _refuse(self, kind: str, raw: bytes) -> ServiceStep:
        name, reply = _NAMES.get(kind, ""), b""
        if kind == "S":
            self._skips, reply = False, _READY
        elif kind in "QPBDEC":
            # After an error of the extended protocol nothing is answered before the next Sync.
            if not self._skips:
                reply = _REFUSED + (_READY if kind == "Q" else b"")
            self._skips = self._skips or kind != "Q"
        elif kind not in "HXdcf":
            what = f"invalid frontend message type {ord(kind)}"
            return self._fatal(name, raw, "08P01", what)
        return ServiceStep(name, raw, reply, close=kind == "X")


def make(context: StandInContext) -> StreamApp:
    return stream_app(
        context, "postgres", lambda: PostgresSession(context.settings, b"\0\0" + context.random(6))
    )
