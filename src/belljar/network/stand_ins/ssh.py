"""A decoy SSH server, asyncssh's."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import logging
import os
from collections.abc import Awaitable, Callable
from functools import partialmethod
from typing import Any, Final, NoReturn, TypeAlias

import asyncssh

from belljar.network.stand_ins.conversation import Presented, ServiceStep, record
from belljar.network.stand_ins.web import ClientStream, StandInContext, StreamApp
from belljar.signals.decoys import fingerprint, openssh_private, public_line

VERSION: Final = "OpenSSH_9.2p1 Debian-2+deb12u3"  # Debian 12's, as of an ordinary machine.
MAX_ATTEMPTS: Final = 6  # As the real server's.
MAX_CONNECTIONS: Final = 100  # As the real server: asyncssh holds 256 KiB for each.
MAX_SESSIONS: Final = 10  # Of one connection.
INPUT_WAIT_S: Final = 1.0  # What comes after a refusal can't be read.
_WINDOW_BYTES: Final = 64 << 10  # Of input that a session takes at once.
_SETTLE_TURNS: Final = 16  # Of the loop, from a message to its record; asyncssh takes four.
_PROHIBITED: Final = "administratively prohibited"
_REFUSAL: Final = b"This account is currently not available.\n"  # What nologin(8) prints
# Without the groups that take a core's time.
_KEX: Final = ("curve25519-sha256", "curve25519-sha256@libssh.org", "ecdh-sha2-nistp256")
_Options: TypeAlias = asyncssh.SSHServerConnectionOptions
# Text that a client chose would reach the gateway's standard error.
asyncssh.set_log_level(logging.CRITICAL)


class _SshConnection(asyncssh.SSHServerConnection):
    def __init__(
        self, options: _Options, context: StandInContext, cell: str, tasks: asyncio.TaskGroup
    ) -> None:
        super().__init__(asyncio.get_running_loop(), options)
        self._context, self._cell, self.tasks = context, cell, tasks
        self._attempts = self.sessions = 0
        self._pending: set[asyncio.Task[None]] = set()  # What waits for the record.

    async def record(self, step: ServiceStep) -> None:
        """Record a step, even if its answer is cancelled."""
        recording = self.tasks.create_task(record(self._context, "ssh", [step], self._cell))
        self._pending.add(recording)
        recording.add_done_callback(self._pending.discard)
        await asyncio.shield(recording)

    async def settle(self) -> None:
        """Return when all that was received is recorded."""
        for _ in range(_SETTLE_TURNS):
            await asyncio.sleep(0)
            await self.recorded()

    async def recorded(self) -> None:
        if self._pending:
            await asyncio.wait(self._pending)

    async def reload_config(self) -> None:
        """Keep the options: asyncssh would need a thread."""

    async def validate_password(self, username: str, password: str) -> bool:
        settings, secret = self._context.settings, password.encode()
        is_right = hmac.compare_digest(secret, str(settings["password"]).encode())
        ok = is_right and username == settings["user"]
        return await self._judged(username, secret, "password", ok=ok)

    async def change_password(self, username: str, old_password: str, new_password: str) -> bool:
        secret = f"{old_password}\n{new_password}".encode()
        return await self._judged(username, secret, "password", ok=False)

    async def validate_public_key(
        self, username: str, key_data: bytes, msg: bytes, signature: bytes
    ) -> bool:
        """Record a wrong key at once."""
        settings = self._context.settings
        named = f"{public_line(key_data)} {fingerprint(key_data)}".encode()
        if fingerprint(key_data) != settings["fingerprint"] or username != settings["user"]:
            return await self._judged(username, named, "publickey", ok=False)
        if not msg:
            # Without the fingerprint: an offer is no use of the key.
            await self.record(ServiceStep("key offered", key_data))
            return True
        ok = await super().validate_public_key(username, key_data, msg, signature)
        return await self._judged(username, named if ok else b"", "publickey", ok=ok)

    async def _judged(self, user: str, credential: bytes, mechanism: str, *, ok: bool) -> bool:
        self._attempts += not ok
        await self.record(ServiceStep(mechanism, b"", presented=Presented(user, credential, ok)))
        if self._attempts >= MAX_ATTEMPTS:
            self.disconnect(asyncssh.DISC_PROTOCOL_ERROR, "Too many authentication failures")
        return ok


class _Server(asyncssh.SSHServer):
    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection: Any = conn

    def password_auth_supported(self) -> bool:
        return True

    public_key_auth_supported = password_auth_supported

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return True

    def session_requested(self) -> Any:  # noqa: ANN401 - asyncssh's union
        self._connection.sessions += 1
        return self._connection.sessions <= MAX_SESSIONS and _Session(self._connection)

    async def connection_requested(self, *where: Any) -> NoReturn:  # noqa: ANN401 - of two kinds
        named = f"forward to {':'.join(map(str, where[:2]))}".encode("utf-8", "replace")
        await self._connection.record(ServiceStep("forward", named))
        raise asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, _PROHIBITED)

    unix_connection_requested: Any = connection_requested

    async def server_requested(self, *where: object) -> bool:
        named = ":".join(map(str, where)).encode("utf-8", "replace")
        await self._connection.record(ServiceStep("listen", named))
        return False

    unix_server_requested: Any = server_requested


class _Session(asyncssh.SSHServerSession[bytes]):
    def __init__(self, connection: _SshConnection) -> None:
        self._connection = connection
        self._input_ended = asyncio.Event()
        self._has_requested = False

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._channel = chan

    def pty_requested(self, term_type: str, term_size: object, term_modes: object) -> bool:
        self._note("terminal", term_type.encode())
        return True  # As it is before a real server starts `nologin`.

    def signal_received(self, signal: str) -> None:
        self._note("signal", signal.encode())

    def _note(self, name: str, data: bytes) -> None:
        self._connection.tasks.create_task(self._connection.record(ServiceStep(name, data)))

    def _variables(self) -> list[bytes]:
        return [b"=".join(pair) for pair in self._channel.get_environment_bytes().items()]

    def _requested(self, name: str, text: str = "") -> bool:
        self._has_requested = True
        raw = b"\n".join((text.encode("utf-8", "replace"), *self._variables()))
        self._connection.tasks.create_task(self._refuse(ServiceStep(name, raw)))
        return True

    shell_requested: Any = partialmethod(_requested, "shell")
    exec_requested: Any = partialmethod(_requested, "exec")
    subsystem_requested: Any = partialmethod(_requested, "subsystem")

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._note("input", data)

    def eof_received(self) -> bool:
        self._input_ended.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._input_ended.set()
        if not self._has_requested and (variables := self._variables()):
            self._note("variables", b"\n".join(variables))

    async def _refuse(self, step: ServiceStep) -> None:
        await self._connection.record(step)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(INPUT_WAIT_S):
                await self._input_ended.wait()
        with contextlib.suppress(OSError):  # The client may have closed it.
            self._channel.write(_REFUSAL)
            self._channel.exit(1)


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.pieces, self._is_closing = asyncio.Queue[bytes](), False

    async def send_all(self, stream: ClientStream, recorded: Callable[[], Awaitable[None]]) -> None:
        while True:
            data = await self.pieces.get()
            await recorded()  # asyncssh itself answers that a session was given what it asked for
            with contextlib.suppress(OSError):  # the reader sees the same end
                await stream.send(data)
            self.pieces.task_done()

    def write(self, data: Any) -> None:  # noqa: ANN401 - any buffer
        self.pieces.put_nowait(bytes(data))

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close


def make(context: StandInContext) -> StreamApp:
    # asyncssh asks where the home is, and reads nothing there; a gateway's user has no entry.
    os.environ.setdefault("HOME", "/")
    seed = base64.b64decode(str(context.settings["host_key"]))
    key = asyncssh.import_private_key(openssh_private(seed, bytes(4), b""))
    options = _Options(
        server_factory=_Server,
        server_host_keys=[key],
        server_version=VERSION,
        encoding=None,
        window=_WINDOW_BYTES,
        kbdint_auth=False,
        gss_host=None,
        agent_forwarding=False,
        line_editor=False,
        allow_scp=False,
        send_server_host_keys=False,
        kex_algs=_KEX,
        compression_algs=("none",),
    )

    slots = asyncio.Semaphore(MAX_CONNECTIONS)

    async def serve(stream: ClientStream, cell: str) -> None:
        if slots.locked():
            await stream.send(b"Exceeded MaxStartups\r\n")
            return
        async with slots, asyncio.TaskGroup() as tasks:
            connection, transport = _SshConnection(options, context, cell, tasks), _Transport()
            connection.connection_made(transport)
            sending = tasks.create_task(transport.send_all(stream, connection.recorded))
            try:
                with contextlib.suppress(ConnectionError):
                    while not transport.is_closing() and (data := await stream.receive()):
                        connection.data_received(data)
                        await connection.settle()
                        await transport.pieces.join()
            finally:
                connection.abort()
                sending.cancel()

    return serve
