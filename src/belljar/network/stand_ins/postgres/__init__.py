"""A decoy PostgreSQL: it logs in, and refuses each query. All of it is on record."""

from __future__ import annotations

import hmac
import itertools
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

from belljar.dataclass import dataclass, field
from belljar.network.gateway.context import StandInContext, StreamApp
from belljar.network.stand_ins.conversation import Presented, Step, stream_app
from belljar.network.stand_ins.postgres import wire

_PARAMETERS: Final = {
    "application_name": "",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "default_transaction_read_only": "off",
    "in_hot_standby": "on",
    "integer_datetimes": "on",
    "IntervalStyle": "postgres",
    "is_superuser": "off",
    "server_encoding": "UTF8",
    "server_version": "15.10 (Debian 15.10-0+deb12u1)",
    "standard_conforming_strings": "on",
    "TimeZone": "Etc/UTC",
}
# As where a role has lost its grants: the login is right, and nothing may be read.
_REFUSED: Final = wire.error("42501", "permission denied for schema public")
_NAMES: Final = {
    "Q": "query",
    "P": "parse",
    "B": "bind",
    "D": "describe",
    "E": "execute",
    "C": "close",
    "S": "sync",
    "H": "flush",
    "X": "terminate",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """The login that opens it."""

    user: str
    password: str = field(repr=False)
    name: str


class PostgresSession:
    """One connection."""

    greeting = b""

    def __init__(self, database: Database, process_id: int, secret: int) -> None:
        self._database = database
        self._key = struct.pack("!iI", process_id, secret)
        self._reader = wire.Reader()
        self._user = self._wanted = ""
        self._skips = False

    @property
    def rest(self) -> bytes:
        """Bytes of an incomplete message."""
        return self._reader.rest

    def feed(self, data: bytes) -> Iterator[Step]:
        """The steps that these bytes complete."""
        for message in self._reader.feed(data):
            if message.problem:
                yield _fatal(message, "08P01", message.problem)
            elif not self._reader.is_begun:
                yield self._begin(message)
            elif self._reader.is_anonymous:
                yield self._log_in(message)
            else:
                yield self._serve(message)

    def _begin(self, message: wire.Message) -> Step:
        if message.code in (wire.SSL_REQUEST, wire.GSS_REQUEST):
            return Step("encryption", message.raw, b"N")
        major, minor = message.code >> 16, message.code & 0xFFFF
        if major != wire.PROTOCOL_MAJOR:
            if message.code == wire.CANCEL_REQUEST:
                return Step("cancel", message.raw, close=True)
            what = f"unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.0"
            return _fatal(message, "0A000", what, name="startup")
        parameters = wire.startup_parameters(message.body)
        user = parameters.get(b"user", b"")
        if not user:
            what = "no PostgreSQL user name specified in startup packet"
            return _fatal(message, "28000", what, name="startup")
        self._user = user.decode("utf-8", "replace")
        self._wanted = parameters.get(b"database", user).decode("utf-8", "replace")
        self._reader.is_begun = True
        negotiated = wire.message("v", struct.pack("!ii", 0, 0)) if minor else b""
        asked = wire.message("R", struct.pack("!i", 3))
        return Step("startup", message.raw, negotiated + asked)

    def _log_in(self, message: wire.Message) -> Step:
        if message.kind != "p":
            what = f"expected password response, got message type {ord(message.kind)}"
            return _fatal(message, "08P01", what)
        password = message.body.partition(b"\0")[0]
        is_right = hmac.compare_digest(password, self._database.password.encode())
        ok = is_right and self._user == self._database.user
        presented = Presented(user=self._user, credential=message.body, ok=ok, mechanism="password")
        if not ok:
            code, what = "28P01", f'password authentication failed for user "{self._user}"'
        elif self._wanted in ("postgres", "template1") and self._wanted != self._database.name:
            code, what = "42501", f'permission denied for database "{self._wanted}"'
        elif self._wanted != self._database.name:
            code, what = "3D000", f'database "{self._wanted}" does not exist'
        else:
            self._reader.is_anonymous = False
            reply = wire.message("R", struct.pack("!i", 0))
            for name, value in {**_PARAMETERS, "session_authorization": self._user}.items():
                reply += wire.message("S", wire.text(name) + wire.text(value))
            reply += wire.message("K", self._key) + _READY
            return Step("password", message.raw, reply, presented)
        return _fatal(message, code, what, name="password", presented=presented)

    def _serve(self, message: wire.Message) -> Step:
        name, reply = _NAMES.get(message.kind, ""), b""
        match message.kind:
            case "X":
                return Step(name, message.raw, close=True)
            case "Q":
                reply = _REFUSED + _READY
            case "S":
                self._skips = False
                reply = _READY
            case "P" | "B" | "D" | "E" | "C" if not self._skips:
                self._skips = True  # after an error nothing is done before the next Sync
                reply = _REFUSED
            case "P" | "B" | "D" | "E" | "C" | "H" | "d" | "c" | "f":
                pass
            case _:
                what = f"invalid frontend message type {ord(message.kind)}"
                return _fatal(message, "08P01", what)
        return Step(name, message.raw, reply)


_READY: Final = wire.message("Z", b"I")


def _fatal(
    message: wire.Message,
    code: str,
    what: str,
    *,
    name: str = "",
    presented: Presented | None = None,
) -> Step:
    return Step(name, message.raw, wire.error(code, what, severity="FATAL"), presented, close=True)


def make(context: StandInContext) -> StreamApp:
    """A stream stand-in. A connection holds one message of 64 KiB."""
    settings: Mapping[str, Any] = context.settings
    database = Database(
        user=str(settings["user"]),
        password=str(settings["password"]),
        name=str(settings["database"]),
    )
    process_ids = itertools.count(1200 + context.random(1)[0])

    def start() -> PostgresSession:
        secret = int.from_bytes(context.random(4), "big")
        return PostgresSession(database, next(process_ids) % (1 << 22), secret)

    return stream_app(context, "postgres", start)
