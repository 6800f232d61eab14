"""The stand-in: one session a connection, all of one host."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from belljar.network.gateway.context import StandInContext, StreamApp
from belljar.network.stand_ins.conversation import converse
from belljar.network.stand_ins.faults import Faults, missing_settings
from belljar.network.stand_ins.ssh.session import Bastion, SshSession
from belljar.network.stand_ins.ssh.shell import Host

_SETTINGS: Final = ("host", "user", "password", "host_key", "fingerprint", "files")


def make(context: StandInContext) -> StreamApp:
    """A stream stand-in. Its memory: what it holds, and of each connection one packet of at most
    36 KB and ten sessions with at most 1 MiB of output that waits."""
    settings: Mapping[str, Any] = context.settings
    bastion = Bastion(
        host=Host(
            name=str(settings["host"]),
            user=str(settings["user"]),
            files={str(path): str(content) for path, content in settings["files"].items()},
            changed_s=context.clock() - 86_400 * (20 + context.random(1)[0] % 60),
        ),
        host_key=Ed25519PrivateKey.from_private_bytes(base64.b64decode(settings["host_key"])),
        password=str(settings["password"]).encode(),
        fingerprint=str(settings["fingerprint"]),
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cell: str) -> None:
        session = SshSession(bastion, os.urandom)
        try:
            writer.write(session.greeting)
            await writer.drain()
        except ConnectionError:
            return
        await converse(context, "ssh", session, (reader, writer), cell)

    return serve


def check(settings: Mapping[str, Any], directory: Path | None) -> Faults:  # noqa: ARG001
    """What is missing of what it is to hold."""
    return missing_settings(settings, _SETTINGS)
