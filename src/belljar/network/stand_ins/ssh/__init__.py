"""A decoy SSH server: a bastion host with a restricted shell."""

from __future__ import annotations

import asyncio
import base64
import hmac
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from belljar.dataclass import dataclass
from belljar.network.gateway.context import StandInContext, StreamApp
from belljar.network.stand_ins.conversation import Presented, Step, converse
from belljar.network.stand_ins.documents import Faults, missing_settings
from belljar.network.stand_ins.ssh.shell import Channel, Host
from belljar.network.stand_ins.ssh.wire import (
    ECDH_INIT,
    ED25519,
    KEXINIT,
    Chosen,
    Exchanged,
    Fields,
    Malformed,
    PacketReader,
    PacketWriter,
    choose,
    exchange,
    number,
    offer,
    text,
)
from belljar.signals.credentials import ED25519_BYTES, fingerprint, public_line

VERSION: Final = b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3"
MAX_VERSION_BYTES: Final = 255
MAX_ATTEMPTS: Final = 6
MAX_CHANNELS: Final = 10
DISCONNECT: Final = 1
UNIMPLEMENTED: Final = 3
SERVICE_REQUEST: Final = 5
SERVICE_ACCEPT: Final = 6
NEWKEYS: Final = 21
AUTH_REQUEST: Final = 50
AUTH_FAILURE: Final = 51
AUTH_SUCCESS: Final = 52
AUTH_KEY_IS_FINE: Final = 60
GLOBAL_REQUEST: Final = 80
REQUEST_FAILURE: Final = 82
CHANNEL_OPEN: Final = 90
CHANNEL_OPEN_CONFIRMATION: Final = 91
CHANNEL_OPEN_FAILURE: Final = 92
_NAMES: Final = {
    DISCONNECT: "disconnect",
    SERVICE_REQUEST: "service",
    KEXINIT: "key exchange",
    ECDH_INIT: "key exchange",
    NEWKEYS: "new keys",
    AUTH_REQUEST: "authentication",
    GLOBAL_REQUEST: "global request",
    CHANNEL_OPEN: "open",
}
# Messages of every phase that are no request: ignore, unimplemented, debug
_SILENT: Final = frozenset({2, UNIMPLEMENTED, 4})
_PROTOCOL_ERROR: Final = 2
_TOO_MANY_ATTEMPTS: Final = 2
_PROHIBITED: Final = 1
_NO_RESOURCES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Bastion:
    """What all connections see. `fingerprint`: of the key that logs in."""

    host: Host
    host_key: Ed25519PrivateKey = field(repr=False)
    password: bytes = field(repr=False)
    fingerprint: str


class SshSession:
    """One connection. `random`: bytes that nobody can guess."""

    def __init__(self, bastion: Bastion, random: Callable[[int], bytes]) -> None:
        self._bastion, self._random = bastion, random
        self._reader, self._writer = PacketReader(), PacketWriter(random)
        self._line = bytearray()
        self._version = b""
        self._offer = offer(random)
        self._their_offer = b""
        self._chosen: Chosen | None = None
        self._exchanged: Exchanged | None = None
        self._is_sealed = False
        self._may_log_in = False
        self._is_inside = False
        self._attempts = 0
        self._channels: dict[int, Channel] = {}

    @property
    def greeting(self) -> bytes:
        """What the server says before the client does."""
        return VERSION + b"\r\n" + self._writer.packet(self._offer)

    @property
    def rest(self) -> bytes:
        """Of a message that isn't complete."""
        return bytes(self._line) + self._reader.rest

    def feed(self, data: bytes) -> Iterator[Step]:
        """The steps that these bytes complete."""
        try:
            if not self._version:
                data = yield from self._begin(data)
            self._reader.feed(data)
            while (payload := self._reader.next()) is not None:
                if not payload:
                    raise Malformed("an empty message")
                try:
                    step = self._step(payload)
                except Malformed as error:
                    step = self._refuse(payload, str(error))
                yield step
                if step.close:
                    return
        except Malformed as error:
            yield self._refuse(b"", str(error))

    def _begin(self, data: bytes) -> Generator[Step, None, bytes]:
        line, end, rest = (bytes(self._line) + data).partition(b"\n")
        if len(line) > MAX_VERSION_BYTES or (
            end and not line.startswith((b"SSH-2.0-", b"SSH-1.99-"))
        ):
            self._line.clear()
            yield Step(
                name="version",
                raw=line + end + rest,
                reply=b"Invalid SSH identification string.\r\n",
                close=True,
            )
            return b""
        if not end:
            self._line[:] = line
            return b""
        self._line.clear()
        self._version = line.removesuffix(b"\r")
        yield Step(name="version", raw=line + end)
        return rest

    def _refuse(self, raw: bytes, what: str) -> Step:
        said = number(_PROTOCOL_ERROR) + text(what.encode()) + text(b"")
        return Step(
            name="refused",
            raw=raw,
            reply=self._writer.packet(bytes((DISCONNECT,)) + said),
            close=True,
        )

    def _step(self, payload: bytes) -> Step:
        kind, reply = payload[0], b""
        name = _NAMES.get(kind, str(kind))
        if kind == DISCONNECT:
            return Step(name=name, raw=payload, close=True)
        if kind in _SILENT:
            return Step(name=name, raw=payload)
        if not self._is_sealed:
            return Step(name=name, raw=payload, reply=self._exchange(kind, payload))
        if kind == SERVICE_REQUEST:
            if Fields(payload[1:]).text() != b"ssh-userauth":
                raise Malformed("no such service")
            self._may_log_in = True
            reply = self._writer.packet(bytes((SERVICE_ACCEPT,)) + text(b"ssh-userauth"))
            return Step(name=name, raw=payload, reply=reply)
        if kind == AUTH_REQUEST and self._may_log_in:
            return Step(name=name, raw=payload) if self._is_inside else self._log_in(payload)
        if not self._is_inside or kind in (KEXINIT, ECDH_INIT, NEWKEYS, AUTH_REQUEST):
            raise Malformed("unexpected message")
        return self._serve(kind, payload)

    # ---- keys

    def _exchange(self, kind: int, payload: bytes) -> bytes:
        if kind == KEXINIT and self._chosen is None:
            self._their_offer, self._chosen = payload, choose(payload)
            return b""
        if self._chosen is None or kind == KEXINIT:
            raise Malformed("unexpected message")
        if self._chosen.skips:
            self._chosen = Chosen(ciphers=self._chosen.ciphers, macs=self._chosen.macs, skips=False)
            return b""
        if kind == ECDH_INIT and self._exchanged is None:
            begun = (self._version, VERSION, self._their_offer, self._offer)
            made = exchange(payload, self._chosen, self._bastion.host_key, begun, self._random)
            self._exchanged = made
            reply = self._writer.packet(made.reply) + self._writer.packet(bytes((NEWKEYS,)))
            self._writer.cipher = made.outgoing
            return reply
        if kind == NEWKEYS and self._exchanged is not None:
            self._reader.cipher, self._is_sealed = self._exchanged.incoming, True
            return b""
        raise Malformed("unexpected message")

    # ---- logins

    def _log_in(self, payload: bytes) -> Step:
        fields = Fields(payload[1:])
        user, service, method = fields.text(), fields.text(), fields.text()
        if service != b"ssh-connection":
            raise Malformed("no such service")
        if method == b"password":
            is_change, password = fields.flag(), fields.text()
            is_right = hmac.compare_digest(password, self._bastion.password)
            ok = is_right and self._is_user(user) and not is_change
            return self._judged(payload, _presented(user, password, "password", ok=ok))
        if method == b"publickey":
            has_signature, algorithm, blob = fields.flag(), fields.text(), fields.text()
            return self._key(
                payload, user, algorithm, blob, fields.text() if has_signature else None
            )
        if method != b"none":
            self._attempts += 1
        return self._denied("authentication", payload, None)

    def _is_user(self, user: bytes) -> bool:
        return user == self._bastion.host.user.encode()

    def _key(
        self, payload: bytes, user: bytes, algorithm: bytes, blob: bytes, signature: bytes | None
    ) -> Step:
        is_known = algorithm == ED25519 and fingerprint(blob) == self._bastion.fingerprint
        if not (is_known and self._is_user(user)):
            # As the real server, it asks nobody to prove a key that opens nothing.
            return self._judged(payload, _presented(user, _named(blob), "publickey", ok=False))
        if signature is None:
            said = bytes((AUTH_KEY_IS_FINE,)) + text(algorithm) + text(blob)
            return Step(name="key offered", raw=payload, reply=self._writer.packet(said))
        ok = self._is_signed(payload[: len(payload) - len(text(signature))], blob, signature)
        return self._judged(
            payload, _presented(user, _named(blob) if ok else b"", "publickey", ok=ok)
        )

    def _is_signed(self, request: bytes, blob: bytes, signature: bytes) -> bool:
        made = self._exchanged
        fields = Fields(signature)
        if made is None or fields.text() != ED25519:
            return False
        try:
            key = Ed25519PublicKey.from_public_bytes(blob[-ED25519_BYTES:])
            key.verify(fields.text(), text(made.session_id) + request)
        except InvalidSignature:
            return False
        return True

    def _judged(self, payload: bytes, presented: Presented) -> Step:
        if not presented.ok:
            self._attempts += 1
            return self._denied("login", payload, presented)
        self._is_inside = True
        return Step(
            name="login",
            raw=payload,
            reply=self._writer.packet(bytes((AUTH_SUCCESS,))),
            presented=presented,
        )

    def _denied(self, name: str, payload: bytes, presented: Presented | None) -> Step:
        ends = self._attempts >= MAX_ATTEMPTS
        if ends:
            said = (
                number(_TOO_MANY_ATTEMPTS) + text(b"Too many authentication failures") + text(b"")
            )
            reply = bytes((DISCONNECT,)) + said
        else:
            reply = bytes((AUTH_FAILURE,)) + text(b"publickey,password") + b"\0"
        return Step(
            name=name,
            raw=payload,
            reply=self._writer.packet(reply),
            presented=presented,
            close=ends,
        )

    # ---- sessions

    def _serve(self, kind: int, payload: bytes) -> Step:
        fields = Fields(payload[1:])
        if kind == GLOBAL_REQUEST:
            fields.text()
            reply = self._writer.packet(bytes((REQUEST_FAILURE,))) if fields.flag() else b""
            return Step(name="global request", raw=payload, reply=reply)
        if kind == CHANNEL_OPEN:
            return Step(name="open", raw=payload, reply=self._writer.packet(self._open(fields)))
        if not Channel.MESSAGES[0] <= kind <= Channel.MESSAGES[1]:
            return Step(
                name=str(kind),
                raw=payload,
                reply=self._writer.packet(bytes((UNIMPLEMENTED,)) + number(0)),
            )
        index = fields.number()
        channel = self._channels.get(index)
        if channel is None:
            raise Malformed("no such channel")
        said = channel.take(kind, fields)
        if channel.is_closed:
            del self._channels[index]
        reply = b"".join(map(self._writer.packet, said.payloads))
        return Step(name=said.name, raw=said.data or payload, reply=reply)

    def _open(self, fields: Fields) -> bytes:
        kind, theirs = fields.text(), fields.number()
        window, max_packet = fields.number(), fields.number()
        free = next(index for index in range(MAX_CHANNELS + 1) if index not in self._channels)
        if kind != b"session" or free == MAX_CHANNELS:
            code = _PROHIBITED if kind != b"session" else _NO_RESOURCES
            return (
                bytes((CHANNEL_OPEN_FAILURE,))
                + number(theirs)
                + number(code)
                + text(b"open failed")
                + text(b"")
            )
        channel = Channel(self._bastion.host, theirs, window, max_packet)
        self._channels[free] = channel
        opened = (
            number(theirs)
            + number(free)
            + number(Channel.WINDOW_BYTES)
            + number(Channel.PACKET_BYTES)
        )
        return bytes((CHANNEL_OPEN_CONFIRMATION,)) + opened


def _named(blob: bytes) -> bytes:
    return f"{public_line(blob)} {fingerprint(blob)}".encode()


def _presented(user: bytes, credential: bytes, mechanism: str, *, ok: bool) -> Presented:
    return Presented(
        user=user.decode("utf-8", "replace"), credential=credential, ok=ok, mechanism=mechanism
    )


_SETTINGS: Final = ("host", "user", "password", "host_key", "fingerprint", "files")


def make(context: StandInContext) -> StreamApp:
    """A stream stand-in; a connection holds one packet of 36 KB and ten sessions of 1 MiB."""
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
