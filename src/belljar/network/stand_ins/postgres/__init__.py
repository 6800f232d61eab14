"""A decoy PostgreSQL: a hot standby that holds what was made for its range."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Final

from belljar.dataclass import dataclass
from belljar.network.gateway.context import StandInContext, StreamApp
from belljar.network.stand_ins.conversation import Presented, Step, converse
from belljar.network.stand_ins.documents import Faults, missing_settings
from belljar.network.stand_ins.postgres import wire
from belljar.network.stand_ins.postgres.sql import (
    UNSUPPORTED,
    Result,
    SqlError,
    Table,
    Token,
    select,
    statements,
    tokens,
)

VERSION: Final = "15.10 (Debian 15.10-0+deb12u1)"
MAX_REPLY_BYTES: Final = 1 << 20
MAX_KEPT_CHARS: Final = 128 << 10  # Of prepared queries and their parameters
_FULL_VERSION: Final = (
    f"PostgreSQL {VERSION} on x86_64-pc-linux-gnu, compiled by gcc (Debian 12.2.0-14) 12.2.0, "
    f"64-bit"
)
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
    "server_version": VERSION,
    "standard_conforming_strings": "on",
    "TimeZone": "Etc/UTC",
}
_SHOWN: Final = {
    **{name.lower(): value for name, value in _PARAMETERS.items()},
    "transaction_read_only": "on",
    "search_path": '"$user", public',
    "transaction_isolation": "read committed",
    "max_connections": "100",
    "data_directory": "/var/lib/postgresql/15/main",
    "listen_addresses": "*",
    "ssl": "off",
}
_WRITES: Final = frozenset(
    {"insert", "update", "delete", "create", "drop", "alter", "truncate", "grant", "revoke"}
    | {"vacuum", "reindex", "lock", "merge", "comment", "refresh"}
)
_TAGS: Final = {
    "begin": "BEGIN",
    "start": "START TRANSACTION",
    "commit": "COMMIT",
    "end": "COMMIT",
    "rollback": "ROLLBACK",
    "abort": "ROLLBACK",
    "set": "SET",
    "reset": "RESET",
    "discard": "DISCARD ALL",
    "deallocate": "DEALLOCATE",
    "close": "CLOSE CURSOR",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """What all connections see. `tables`: of the schema `public`."""

    user: str
    password: str = field(repr=False)
    name: str
    tables: Mapping[str, Table] = field(repr=False)

    def catalog(self) -> Mapping[str, Table]:
        """All that a SELECT may read, by name."""
        return {**self.tables, **_catalog(self)}


def _catalog(database: Database) -> dict[str, Table]:
    names = sorted(database.tables)

    def of(columns: str, rows: Sequence[tuple[str, ...]]) -> Table:
        return Table(columns=tuple((name, "name") for name in columns.split()), rows=tuple(rows))

    columns = [
        (database.name, "public", name, column, str(number), kind)
        for name in names
        for number, (column, kind) in enumerate(database.tables[name].columns, 1)
    ]
    return {
        "information_schema.tables": of(
            "table_catalog table_schema table_name table_type",
            [(database.name, "public", name, "BASE TABLE") for name in names],
        ),
        "information_schema.columns": of(
            "table_catalog table_schema table_name column_name ordinal_position data_type", columns
        ),
        "information_schema.schemata": of(
            "catalog_name schema_name",
            [(database.name, name) for name in ("public", "information_schema")],
        ),
        "pg_catalog.pg_tables": of(
            "schemaname tablename tableowner", [("public", name, "postgres") for name in names]
        ),
        "pg_catalog.pg_database": of("datname", [(database.name,), ("postgres",)]),
        "pg_catalog.pg_user": of("usename", [("postgres",), (database.user,)]),
        "pg_catalog.pg_roles": of("rolname", [("postgres",), (database.user,)]),
    }


class PostgresSession:
    """One connection."""

    def __init__(self, database: Database, process_id: int, secret: int) -> None:
        self._database = database
        self._key = struct.pack("!iI", process_id, secret)
        self._reader = wire.Reader()
        self._user = ""
        self._wanted = ""
        self._status = b"I"
        self._skips = False
        self._prepared: dict[bytes, _Prepared] = {}
        self._bound: dict[bytes, _Prepared] = {}

    @property
    def rest(self) -> bytes:
        """Of a message that isn't complete."""
        return self._reader.rest

    def feed(self, data: bytes) -> Iterator[Step]:
        """The steps that these bytes complete."""
        for message in self._reader.feed(data):
            if message.problem:
                yield _fatal("", message, "08P01", message.problem)
            elif not self._reader.is_begun:
                yield self._begin(message)
            elif self._reader.is_stranger:
                yield self._log_in(message)
            else:
                yield self._serve(message)

    # ---- the beginning

    def _begin(self, message: wire.Message) -> Step:
        if message.code in (wire.SSL_REQUEST, wire.GSS_REQUEST):
            return Step(name="encryption", raw=message.raw, reply=b"N")
        major, minor = message.code >> 16, message.code & 0xFFFF
        if major != wire.PROTOCOL_MAJOR:
            if message.code == wire.CANCEL_REQUEST:
                return Step(name="cancel", raw=message.raw, close=True)
            what = f"unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.0"
            return _fatal("startup", message, "0A000", what)
        parameters = wire.startup_parameters(message.body)
        user = parameters.get(b"user", b"")
        if not user:
            return _fatal(
                "startup", message, "28000", "no PostgreSQL user name specified in startup packet"
            )
        self._user = user.decode("utf-8", "replace")
        self._wanted = parameters.get(b"database", user).decode("utf-8", "replace")
        self._reader.is_begun = True
        negotiated = wire.message("v", struct.pack("!ii", 0, 0)) if minor else b""
        asked = wire.message("R", struct.pack("!i", 3))
        return Step(name="startup", raw=message.raw, reply=negotiated + asked)

    def _log_in(self, message: wire.Message) -> Step:
        if message.kind != "p":
            return _fatal(
                "",
                message,
                "08P01",
                f"expected password response, got message type {ord(message.kind)}",
            )
        password = message.body.partition(b"\0")[0]
        is_right = hmac.compare_digest(password, self._database.password.encode())
        ok = is_right and self._user == self._database.user
        presented = Presented(user=self._user, credential=message.body, ok=ok, mechanism="password")
        if not ok:
            what = f'password authentication failed for user "{self._user}"'
            reply, ends = wire.error("28P01", what, severity="FATAL"), True
        elif self._wanted != self._database.name:
            is_there = self._wanted in ("postgres", "template1")  # pg_database lists it
            what = f'database "{self._wanted}" does not exist'
            what, code = (
                (f'permission denied for database "{self._wanted}"', "42501")
                if is_there
                else (what, "3D000")
            )
            reply, ends = wire.error(code, what, severity="FATAL"), True
        else:
            self._reader.is_stranger = False
            parameters = {**_PARAMETERS, "session_authorization": self._user}
            reply = wire.message("R", struct.pack("!i", 0))
            for name, value in parameters.items():
                reply += wire.message("S", wire.text(name) + wire.text(value))
            reply, ends = reply + wire.message("K", self._key) + self._ready(), False
        return Step(name="password", raw=message.raw, reply=reply, presented=presented, close=ends)

    def _ready(self) -> bytes:
        return wire.message("Z", self._status)

    # ---- queries

    def _serve(self, message: wire.Message) -> Step:
        name = _NAMES.get(message.kind, "")
        match message.kind:
            case "X":
                return Step(name=name, raw=message.raw, close=True)
            case "Q":
                return Step(
                    name=name, raw=message.raw, reply=self._query(message.body) + self._ready()
                )
            case "S":
                self._skips = False
                return Step(name=name, raw=message.raw, reply=self._ready())
            case "H" | "d" | "c" | "f":
                return Step(name=name, raw=message.raw)
            case "P" | "B" | "D" | "E" | "C":
                return Step(
                    name=name,
                    raw=message.raw,
                    reply=b"" if self._skips else self._extended(message),
                )
            case _:
                return _fatal(
                    "", message, "08P01", f"invalid frontend message type {ord(message.kind)}"
                )

    def _query(self, body: bytes) -> bytes:
        query = body.partition(b"\0")[0].decode("utf-8", "replace")
        try:
            found = list(statements(query))
            said = b"" if found else wire.message("I")
            for statement in found:
                result = self._run(statement, query)
                said += _described(result) + _rows(result)
                if len(said) > MAX_REPLY_BYTES:
                    raise SqlError("53200", "out of memory")
        except SqlError as error:
            if self._status == b"T":
                self._status = b"E"
            return wire.error(error.code, error.what, position=error.position)
        return said

    def _run(self, statement: Sequence[Token], query: str) -> Result:
        verb = statement[0].value
        if self._status == b"E" and verb not in ("rollback", "abort", "commit", "end"):
            what = "current transaction is aborted, commands ignored until end of transaction block"
            raise SqlError("25P02", what)
        if verb in _TAGS:
            self._status = {"begin": b"T", "start": b"T"}.get(
                verb, b"I" if _TAGS[verb] in _ENDS else self._status
            )
            return Result(tag=_TAGS[verb])
        if verb in _WRITES:
            raise SqlError("25006", f"cannot execute {verb.upper()} in a read-only transaction")
        if verb == "show" and len(statement) > 1:
            name = "".join(token.value for token in statement[1:])
            if name not in _SHOWN:
                raise SqlError("42704", f'unrecognized configuration parameter "{name[:63]}"')
            return Result(tag="SHOW", columns=((name, "text"),), rows=((_SHOWN[name],),))
        if verb == "table":
            verb, statement = "select", [*tokens("select * from"), *statement[1:]]
        if verb in _UNSUPPORTED:
            raise SqlError(*UNSUPPORTED)
        if verb != "select":
            raise SqlError(
                "42601",
                f'syntax error at or near "{statement[0].shown[:60]}"',
                statement[0].position,
            )
        if "pg_catalog.pg_class c" in query and 'as "Type"' in query:
            # What psql's `\dt` and `\d` ask for
            columns = tuple((name, "text") for name in ("Schema", "Name", "Type", "Owner"))
            rows = tuple(
                ("public", name, "table", "postgres") for name in sorted(self._database.tables)
            )
            return Result(tag=f"SELECT {len(rows)}", columns=columns, rows=rows)
        try:
            return select(statement, self._database.catalog(), self._constants())
        except SqlError as error:
            if "pg_catalog." in query and error.code in _ABSENT:  # it is there in a real one
                raise SqlError(*UNSUPPORTED) from None
            raise

    def _constants(self) -> Mapping[str, str]:
        user, name = self._user, self._database.name
        words = {
            "current_user": user,
            "session_user": user,
            "user": user,
            "current_catalog": name,
            "true": "t",
        }
        functions = {
            "version()": _FULL_VERSION,
            "current_database()": name,
            "current_schema()": "public",
            "pg_is_in_recovery()": "t",
            "pg_backend_pid()": str(struct.unpack("!iI", self._key)[0]),
        }
        return {**words, "current_schema": "public", "false": "f", **functions}

    # ---- the extended protocol; parameters are text, whatever the client takes them for

    def _extended(self, message: wire.Message) -> bytes:
        try:
            return self._extended_or_error(message.kind, message.body)
        except SqlError as error:
            self._skips = True
            if self._status == b"T":
                self._status = b"E"
            return wire.error(error.code, error.what, position=error.position)

    def _extended_or_error(self, kind: str, body: bytes) -> bytes:
        match kind:
            case "P":
                name, query, rest = [*body.split(b"\0", 2), b"", b""][:3]
                prepared = _Prepared(query.decode("utf-8", "replace"), wire.parameter_types(rest))
                list(statements(prepared.query))
                self._keep(self._prepared, name, prepared)
                return wire.message("1")
            case "B":
                portal, name, rest = [*body.split(b"\0", 2), b"", b""][:3]
                prepared = self._of(self._prepared, name)
                bound = wire.read_bound(rest, prepared.types)
                if bound is None:
                    raise SqlError("08P01", "invalid message format")
                self._keep(self._bound, portal, replace(prepared, bound=bound))
                return wire.message("2")
            case "D":
                return self._describe(
                    is_statement=body[:1] == b"S", name=body[1:].partition(b"\0")[0]
                )
            case "E":
                prepared = self._of(self._bound, body.partition(b"\0")[0])
                return _rows(self._result(prepared), prepared.bound)
            case _:
                of = self._prepared if body[:1] == b"S" else self._bound
                of.pop(body[1:].partition(b"\0")[0], None)
                return wire.message("3")

    def _keep(self, kept: dict[bytes, _Prepared], name: bytes, prepared: _Prepared) -> None:
        kept[name] = prepared
        sizes = (
            len(key) + item.size
            for each in (self._prepared, self._bound)
            for key, item in each.items()
        )
        if sum(sizes) > MAX_KEPT_CHARS:
            del kept[name]
            raise SqlError("53200", "out of memory")

    def _of(self, kept: Mapping[bytes, _Prepared], name: bytes) -> _Prepared:
        if name not in kept:
            what = "portal" if kept is self._bound else "prepared statement"
            shown = name[:63].decode("utf-8", "replace")
            raise SqlError(
                "34000" if kept is self._bound else "26000", f'{what} "{shown}" does not exist'
            )
        return kept[name]

    def _describe(self, *, is_statement: bool, name: bytes) -> bytes:
        prepared = self._of(self._prepared if is_statement else self._bound, name)
        before = self._status
        columns = _described(self._result(prepared), prepared.bound) or wire.message("n")
        self._status = before
        if not is_statement:
            return columns
        numbers = [_parameter(token) for part in statements(prepared.query) for token in part]
        types = [*prepared.types, *[0] * max([0, *numbers])][: max([0, *numbers])]
        oids = [each or wire.TYPES["text"][0] for each in types]
        return wire.message("t", struct.pack(f"!h{len(oids)}I", len(oids), *oids)) + columns

    def _result(self, prepared: _Prepared) -> Result:
        parts = list(statements(prepared.query))
        if len(parts) > 1:
            raise SqlError("42601", "cannot insert multiple commands into a prepared statement")
        if not parts:
            return Result(tag="")
        values = prepared.bound.parameters
        return self._run([_filled(token, values) for token in parts[0]], prepared.query)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A query, the types of its parameters, and once it is bound what stands for them."""

    query: str
    types: tuple[int, ...]
    bound: wire.Bound = wire.NOT_BOUND

    @property
    def size(self) -> int:
        """Roughly what it takes; an empty one takes something, too."""
        numbers = len(self.types) + len(self.bound.result_formats) + len(self.bound.parameters)
        return 100 + len(self.query) + 8 * numbers + sum(map(len, self.bound.parameters))


def _parameter(token: Token) -> int:
    digits = token.value[1:] if token.kind == "sign" and token.value.startswith("$") else ""
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= 4
    return int(digits) if is_number and int(digits) <= 1000 else 0


def _filled(token: Token, parameters: Sequence[str]) -> Token:
    number = _parameter(token)
    if not number:
        return token
    value = parameters[number - 1] if number <= len(parameters) else ""
    return replace(token, kind="text", value=value)


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
_UNSUPPORTED: Final = frozenset(
    {"copy", "explain", "do", "call", "execute", "prepare", "listen", "with", "values", "declare"}
    | {"fetch"}
)
_ABSENT: Final = frozenset({"42P01", "42703", "42601"})
_ENDS: Final = frozenset({"COMMIT", "ROLLBACK"})


def _fatal(name: str, message: wire.Message, code: str, what: str) -> Step:
    return Step(
        name=name, raw=message.raw, reply=wire.error(code, what, severity="FATAL"), close=True
    )


def _described(result: Result, bound: wire.Bound = wire.NOT_BOUND) -> bytes:
    return b"" if result.columns is None else wire.row_description(result.columns, bound)


def _rows(result: Result, bound: wire.Bound = wire.NOT_BOUND) -> bytes:
    if not result.tag:
        return wire.message("I")
    columns = result.columns or ()
    return b"".join(wire.data_row(row, columns, bound) for row in result.rows) + wire.message(
        "C", wire.text(result.tag)
    )


def make(context: StandInContext) -> StreamApp:
    """A stream stand-in; a connection holds one message of 64 KiB and 128 KiB prepared."""
    settings: Mapping[str, Any] = context.settings
    database = Database(
        user=str(settings["user"]),
        password=str(settings["password"]),
        name=str(settings["database"]),
        tables={
            table["name"]: Table(
                columns=tuple((name, kind) for name, kind in table["columns"]),
                rows=tuple(tuple(row) for row in table["rows"]),
            )
            for table in settings["tables"]
        },
    )
    process_ids = itertools.count(1200 + context.random(1)[0])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cell: str) -> None:
        secret = int.from_bytes(context.random(4), "big")
        session = PostgresSession(database, next(process_ids) % (1 << 22), secret)
        await converse(context, "postgres", session, (reader, writer), cell)

    return serve


def check(settings: Mapping[str, Any], directory: Path | None) -> Faults:  # noqa: ARG001
    """What is missing of what it is to hold."""
    return missing_settings(settings, ("user", "password", "database", "tables"))
