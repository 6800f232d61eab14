"""A decoy SSH server: a bastion host with a restricted shell."""

from __future__ import annotations

import base64
import hmac
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from belljar.dataclass import dataclass, field, replace
from belljar.network.gateway.context import StandInContext, StreamApp
from belljar.network.stand_ins.conversation import Presented, Step, stream_app
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
    """`fingerprint`: of the key that logs in."""

    host: Host
    host_key: Ed25519PrivateKey = field(repr=False)
    password: bytes = field(repr=False)
    fingerprint: str


class SshSession:
    """`random`: bytes that nobody can guess."""

    def __init__(self, bastion: Bastion, random: Callable[[int], bytes]) -> None:
        self._bastion, self._random = bastion, random
        self._reader, self._writer = PacketReader(), PacketWriter(random)
        self._line = bytearray()
        self._version = self._their_offer = b""
        self._offer = offer(random)
        self._chosen: Chosen | None = None
        self._exchanged: Exchanged | None = None
        self._is_sealed = self._may_log_in = self._is_inside = False
        self._attempts = 0
        self._channels: dict[int, Channel] = {}

    @property
    def greeting(self) -> bytes:
        """Sent before the client sends anything."""
        return VERSION + b"\r\n" + self._writer.packet(self._offer)

    @property
    def rest(self) -> bytes:
        """Bytes of an incomplete message."""
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
        is_ssh = not end or line.startswith((b"SSH-2.0-", b"SSH-1.99-"))
        if len(line) > MAX_VERSION_BYTES or not is_ssh:
            self._line.clear()
            reply = b"Invalid SSH identification string.\r\n"
            yield Step("version", line + end + rest, reply, close=True)
            return b""
        if not end:
            self._line[:] = line
            return b""
        self._line.clear()
        self._version = line.removesuffix(b"\r")
        yield Step("version", line + end)
        return rest

    def _packet(self, kind: int, *parts: bytes) -> bytes:
        return self._writer.packet(bytes((kind,)) + b"".join(parts))

    def _refuse(self, raw: bytes, what: str) -> Step:
        reply = self._packet(DISCONNECT, number(_PROTOCOL_ERROR), text(what.encode()), text(b""))
        return Step("refused", raw, reply, close=True)

    def _step(self, payload: bytes) -> Step:
        kind = payload[0]
        name = _NAMES.get(kind, str(kind))
        if kind == DISCONNECT:
            return Step(name, payload, close=True)
        if kind in _SILENT:
            return Step(name, payload)
        if not self._is_sealed:
            return Step(name, payload, self._exchange(kind, payload))
        if kind == SERVICE_REQUEST:
            if Fields(payload[1:]).text() != b"ssh-userauth":
                raise Malformed("no such service")
            self._may_log_in = True
            return Step(name, payload, self._packet(SERVICE_ACCEPT, text(b"ssh-userauth")))
        if kind == AUTH_REQUEST and self._may_log_in:
            return Step(name, payload) if self._is_inside else self._log_in(payload)
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
            self._chosen = replace(self._chosen, skips=False)
            return b""
        if kind == ECDH_INIT and self._exchanged is None:
            begun = (self._version, VERSION, self._their_offer, self._offer)
            made = exchange(payload, self._chosen, self._bastion.host_key, begun, self._random)
            self._exchanged = made
            reply = self._writer.packet(made.reply) + self._packet(NEWKEYS)
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
            return self._judged(payload, user, password, "password", ok=ok)
        if method == b"publickey":
            has_signature, algorithm, blob = fields.flag(), fields.text(), fields.text()
            signature = fields.text() if has_signature else None
            return self._key(payload, user, algorithm, blob, signature)
        if method != b"none":
            self._attempts += 1
        return self._denied("authentication", payload, None)

    def _is_user(self, user: bytes) -> bool:
        return user == self._bastion.host.user.encode()

    def _key(
        self, payload: bytes, user: bytes, algorithm: bytes, blob: bytes, signature: bytes | None
    ) -> Step:
        is_known = algorithm == ED25519 and fingerprint(blob) == self._bastion.fingerprint
        named = f"{public_line(blob)} {fingerprint(blob)}".encode()
        if not (is_known and self._is_user(user)):
            # As the real server, it asks nobody to prove a key that opens nothing.
            return self._judged(payload, user, named, "publickey", ok=False)
        if signature is None:
            reply = self._packet(AUTH_KEY_IS_FINE, text(algorithm), text(blob))
            return Step("key offered", payload, reply)
        ok = self._is_signed(payload[: len(payload) - len(text(signature))], blob, signature)
        return self._judged(payload, user, named if ok else b"", "publickey", ok=ok)

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

    def _judged(
        self, payload: bytes, user: bytes, credential: bytes, mechanism: str, *, ok: bool
    ) -> Step:
        shown = user.decode("utf-8", "replace")
        presented = Presented(user=shown, credential=credential, ok=ok, mechanism=mechanism)
        if not ok:
            self._attempts += 1
            return self._denied("login", payload, presented)
        self._is_inside = True
        return Step("login", payload, self._packet(AUTH_SUCCESS), presented)

    def _denied(self, name: str, payload: bytes, presented: Presented | None) -> Step:
        if self._attempts < MAX_ATTEMPTS:
            reply = self._packet(AUTH_FAILURE, text(b"publickey,password"), b"\0")
            return Step(name, payload, reply, presented)
        what = text(b"Too many authentication failures")
        reply = self._packet(DISCONNECT, number(_TOO_MANY_ATTEMPTS), what, text(b""))
        return Step(name, payload, reply, presented, close=True)

    # ---- sessions

    def _serve(self, kind: int, payload: bytes) -> Step:
        fields = Fields(payload[1:])
        if kind == GLOBAL_REQUEST:
            fields.text()
            reply = self._packet(REQUEST_FAILURE) if fields.flag() else b""
            return Step("global request", payload, reply)
        if kind == CHANNEL_OPEN:
            return Step("open", payload, self._open(fields))
        if not Channel.MESSAGES[0] <= kind <= Channel.MESSAGES[1]:
            return Step(str(kind), payload, self._packet(UNIMPLEMENTED, number(0)))
        index = fields.number()
        channel = self._channels.get(index)
        if channel is None:
            raise Malformed("no such channel")
        answer = channel.take(kind, fields)
        if channel.is_closed:
            del self._channels[index]
        packets = b"".join(map(self._writer.packet, answer.payloads))
        return Step(answer.name, answer.data or payload, packets)

    def _open(self, fields: Fields) -> bytes:
        kind, theirs = fields.text(), fields.number()
        window, max_packet = fields.number(), fields.number()
        free = next(index for index in range(MAX_CHANNELS + 1) if index not in self._channels)
        if kind != b"session" or free == MAX_CHANNELS:
            code = _PROHIBITED if kind != b"session" else _NO_RESOURCES
            why = (number(code), text(b"open failed"), text(b""))
            return self._packet(CHANNEL_OPEN_FAILURE, number(theirs), *why)
        self._channels[free] = Channel(self._bastion.host, theirs, window, max_packet)
        room = (number(Channel.WINDOW_BYTES), number(Channel.PACKET_BYTES))
        return self._packet(CHANNEL_OPEN_CONFIRMATION, number(theirs), number(free), *room)


def make(context: StandInContext) -> StreamApp:
    """A stream stand-in. A connection holds one packet of 36 KB and ten sessions of 1 MiB."""
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
    return stream_app(context, "ssh", lambda: SshSession(bastion, os.urandom))
