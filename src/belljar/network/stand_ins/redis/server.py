"""The stand-in: one session a connection, all of one keyspace."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from belljar.network.gateway.context import StandInContext, StreamApp
from belljar.network.stand_ins.conversation import converse
from belljar.network.stand_ins.faults import Faults, missing_settings
from belljar.network.stand_ins.redis.session import Keyspace, RedisSession


def make(context: StandInContext) -> StreamApp:
    """A stream stand-in. Its memory: what it holds, and of each connection one command of at most
    128 KiB."""
    settings: Mapping[str, Any] = context.settings
    space = Keyspace(
        password=str(settings["password"]).encode(),
        strings={name.encode(): text.encode() for name, text in settings["strings"].items()},
        hashes={
            name.encode(): {field.encode(): text.encode() for field, text in fields.items()}
            for name, fields in settings["hashes"].items()
        },
        port=int(settings["port"]),
        run_id=context.random(20).hex(),
        started_s=context.clock() - 86_400 * (20 + context.random(1)[0] % 60),
        clock=context.clock,
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cell: str) -> None:
        await converse(context, "redis", RedisSession(space), (reader, writer), cell)

    return serve


def check(settings: Mapping[str, Any], directory: Path | None) -> Faults:  # noqa: ARG001
    """What is missing of what it is to hold."""
    return missing_settings(settings, ("password", "port", "strings", "hashes"))
