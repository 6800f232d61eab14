"""The stand-in: one session a connection, all of one database."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from belljar.network.gateway.context import StandInContext, StreamApp
from belljar.network.stand_ins.conversation import converse
from belljar.network.stand_ins.faults import Faults, missing_settings
from belljar.network.stand_ins.postgres.session import Database, PostgresSession
from belljar.network.stand_ins.postgres.sql import Table


def make(context: StandInContext) -> StreamApp:
    """A stream stand-in. Its memory: what it holds, and of each connection one message of at most
    64 KiB, and 128 KiB that are prepared."""
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
