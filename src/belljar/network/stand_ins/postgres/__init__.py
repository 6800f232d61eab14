"""A decoy PostgreSQL: a hot standby that holds what was made for its range."""

from __future__ import annotations

import hmac
import itertools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final

from belljar.dataclass import dataclass
from belljar.network.gateway.context import StandInContext, StreamApp
from belljar.network.stand_ins.conversation import Presented, Step, stream_app
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
_COMPILER: Final = "gcc (Debian 12.2.0-14) 12.2.0"
_FULL_VERSION: Final = (
    f"PostgreSQL {VERSION} on x86_64-pc-linux-gnu, compiled by {_COMPILER}, 64-bit"
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
        names, own = sorted(self.tables), self.name

        def of(columns: str, *rows: tuple[str, ...]) -> Table:
            return Table(columns=tuple((name, "name") for name in columns.split()), rows=rows)

        columns = (
            (own, "public", name, column, str(number), kind)
            for name in names
            for number, (column, kind) in enumerate(self.tables[name].columns, 1)
        )
        head = "table_catalog table_schema table_name"
        return {
            **self.tables,
            "information_schema.tables": of(
                f"{head} table_type", *((own, "public", name, "BASE TABLE") for name in names)
            ),
            "information_schema.columns": of(
                f"{head} column_name ordinal_position data_type", *columns
            ),
            "information_schema.schemata": of(
                "catalog_name schema_name", (own, "public"), (own, "information_schema")
            ),
            "pg_catalog.pg_tables": of(
                "schemaname tablename tableowner", *(("public", name, "postgres") for name in names)
            ),
            "pg_catalog.pg_database": of("datname", (own,), ("postgres",)),
            "pg_catalog.pg_user": of("usename", ("postgres",), (self.user,)),
            "pg_catalog.pg_roles": of("rolname", ("postgres",), (self.user,)),
        }


class PostgresSession:
    """One connection."""

    greeting = b""

    def __init__(self, database: Database, process_id: int, secret: int) -> None:
        self._database = database
        self._key = struct.pack("!iI", process_id, secret)
        self._reader = wire.Reader()
        self._user = self._wanted = ""
        self._status = b"I"
        self._skips = False
        self._prepared: dict[bytes, _Prepared] = {}
        self._bound: dict[bytes, _Prepared] = {}

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

    # ---- the beginning

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
            reply += wire.message("K", self._key) + self._ready()
            return Step("password", message.raw, reply, presented)
        return _fatal(message, code, what, name="password", presented=presented)

    def _ready(self) -> bytes:
        return wire.message("Z", self._status)

    # ---- queries

    def _serve(self, message: wire.Message) -> Step:
        name, reply = _NAMES.get(message.kind, ""), b""
        match message.kind:
            case "X":
                return Step(name, message.raw, close=True)
            case "Q":
                query = message.body.partition(b"\0")[0].decode("utf-8", "replace")
                reply = self._or_error(lambda: self._query(query), skips=False) + self._ready()
            case "S":
                self._skips = False
                reply = self._ready()
            case "P" | "B" | "D" | "E" | "C" if not self._skips:
                reply = self._or_error(
                    lambda: self._extended(message.kind, message.body), skips=True
                )
            case "P" | "B" | "D" | "E" | "C" | "H" | "d" | "c" | "f":
                pass
            case _:
                what = f"invalid frontend message type {ord(message.kind)}"
                return _fatal(message, "08P01", what)
        return Step(name, message.raw, reply)

    def _or_error(self, work: Callable[[], bytes], *, skips: bool) -> bytes:
        """`skips`: after an error nothing is done before the next Sync."""
        try:
            return work()
        except SqlError as error:
            self._skips |= skips
            if self._status == b"T":
                self._status = b"E"
            return wire.error(error.code, error.what, position=error.position)

    def _query(self, query: str) -> bytes:
        found = list(statements(query))
        reply = b"" if found else wire.message("I")
        for statement in found:
            result = self._run(statement, query)
            reply += _described(result) + _rows(result)
            if len(reply) > MAX_REPLY_BYTES:
                raise SqlError("53200", "out of memory")
        return reply

    def _run(self, statement: Sequence[Token], query: str) -> Result:
        verb = statement[0].value
        if self._status == b"E" and verb not in ("rollback", "abort", "commit", "end"):
            what = "current transaction is aborted, commands ignored until end of transaction block"
            raise SqlError("25P02", what)
        if verb in _TAGS:
            if verb in ("begin", "start"):
                self._status = b"T"
            elif _TAGS[verb] in ("COMMIT", "ROLLBACK"):
                self._status = b"I"
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
            first = statement[0]
            what = f'syntax error at or near "{first.shown[:60]}"'
            raise SqlError("42601", what, first.position)
        if "pg_catalog.pg_class c" in query and 'as "Type"' in query:
            # What psql's `\dt` and `\d` ask for
            columns = tuple((name, "text") for name in ("Schema", "Name", "Type", "Owner"))
            names = sorted(self._database.tables)
            rows = tuple(("public", name, "table", "postgres") for name in names)
            return Result(tag=f"SELECT {len(rows)}", columns=columns, rows=rows)
        try:
            return select(statement, self._database.catalog(), self._constants())
        except SqlError as error:
            if "pg_catalog." in query and error.code in _ABSENT:  # it is there in a real one
                raise SqlError(*UNSUPPORTED) from None
            raise

    def _constants(self) -> Mapping[str, str]:
        user, name = self._user, self._database.name
        return {
            **dict.fromkeys(("current_user", "session_user", "user"), user),
            **dict.fromkeys(("current_catalog", "current_database()"), name),
            **dict.fromkeys(("current_schema", "current_schema()"), "public"),
            **dict.fromkeys(("true", "pg_is_in_recovery()"), "t"),
            "false": "f",
            "version()": _FULL_VERSION,
            "pg_backend_pid()": str(struct.unpack("!iI", self._key)[0]),
        }

    # ---- the extended protocol; parameters are text, whatever the client takes them for

    def _extended(self, kind: str, body: bytes) -> bytes:
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
                name = body[1:].partition(b"\0")[0]
                return self._describe(name, is_statement=body[:1] == b"S")
            case "E":
                prepared = self._of(self._bound, body.partition(b"\0")[0])
                return _rows(self._result(prepared), prepared.bound)
            case _:
                of = self._prepared if body[:1] == b"S" else self._bound
                of.pop(body[1:].partition(b"\0")[0], None)
                return wire.message("3")

    def _keep(self, kept: dict[bytes, _Prepared], name: bytes, prepared: _Prepared) -> None:
        kept[name] = prepared
        both = (*self._prepared.items(), *self._bound.items())
        if sum(len(key) + item.size for key, item in both) > MAX_KEPT_CHARS:
            del kept[name]
            raise SqlError("53200", "out of memory")

    def _of(self, kept: Mapping[bytes, _Prepared], name: bytes) -> _Prepared:
        if name not in kept:
            is_portal = kept is self._bound
            code, what = ("34000", "portal") if is_portal else ("26000", "prepared statement")
            raise SqlError(code, f'{what} "{name[:63].decode("utf-8", "replace")}" does not exist')
        return kept[name]

    def _describe(self, name: bytes, *, is_statement: bool) -> bytes:
        prepared = self._of(self._prepared if is_statement else self._bound, name)
        before = self._status
        columns = _described(self._result(prepared), prepared.bound) or wire.message("n")
        self._status = before
        if not is_statement:
            return columns
        count = max(
            (_parameter(each) for part in statements(prepared.query) for each in part), default=0
        )
        types = [*prepared.types, *[0] * count][:count]
        oids = [each or wire.TYPES["text"][0] for each in types]
        return wire.message("t", struct.pack(f"!h{len(oids)}I", len(oids), *oids)) + columns

    def _result(self, prepared: _Prepared) -> Result:
        parts = list(statements(prepared.query))
        if len(parts) > 1:
            raise SqlError("42601", "cannot insert multiple commands into a prepared statement")
        if not parts:
            return Result(tag="")
        filled, values = list[Token](), prepared.bound.parameters
        for token in parts[0]:
            number = _parameter(token)
            value = values[number - 1] if 0 < number <= len(values) else ""
            filled.append(replace(token, kind="text", value=value) if number else token)
        return self._run(filled, prepared.query)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A query, its parameters' types, and values once bound."""

    query: str
    types: tuple[int, ...]
    bound: wire.Bound = wire.NOT_BOUND

    @property
    def size(self) -> int:
        """Roughly; an empty one takes something, too."""
        numbers = len(self.types) + len(self.bound.result_formats) + len(self.bound.parameters)
        return 100 + len(self.query) + 8 * numbers + sum(map(len, self.bound.parameters))


def _parameter(token: Token) -> int:
    digits = token.value[1:] if token.kind == "sign" and token.value.startswith("$") else ""
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= 4
    return int(digits) if is_number and int(digits) <= 1000 else 0


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


def _fatal(
    message: wire.Message,
    code: str,
    what: str,
    *,
    name: str = "",
    presented: Presented | None = None,
) -> Step:
    return Step(name, message.raw, wire.error(code, what, severity="FATAL"), presented, close=True)


def _described(result: Result, bound: wire.Bound = wire.NOT_BOUND) -> bytes:
    return b"" if result.columns is None else wire.row_description(result.columns, bound)


def _rows(result: Result, bound: wire.Bound = wire.NOT_BOUND) -> bytes:
    if not result.tag:
        return wire.message("I")
    rows = [wire.data_row(row, result.columns or (), bound) for row in result.rows]
    return b"".join((*rows, wire.message("C", wire.text(result.tag))))


def make(context: StandInContext) -> StreamApp:
    """A stream stand-in. A connection holds one message of 64 KiB and 128 KiB prepared."""
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

    def start() -> PostgresSession:
        secret = int.from_bytes(context.random(4), "big")
        return PostgresSession(database, next(process_ids) % (1 << 22), secret)

    return stream_app(context, "postgres", start)
