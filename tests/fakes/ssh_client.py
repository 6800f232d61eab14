"""The client's half of an SSH connection, over `belljar`'s own packets: it says what a test
wants."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from belljar.network.stand_ins.conversation import Step
from belljar.network.stand_ins.ssh import AUTH_REQUEST, NEWKEYS, SERVICE_REQUEST, SshSession
from belljar.network.stand_ins.ssh.wire import (
    ECDH_INIT,
    KEXINIT,
    Fields,
    Gcm,
    PacketReader,
    PacketWriter,
    mpint,
    text,
)

VERSION = b"SSH-2.0-test"
CONNECTION = b"ssh-connection"
LISTS = (
    b"curve25519-sha256",
    b"ssh-ed25519",
    b"aes128-gcm@openssh.com",
    b"aes128-gcm@openssh.com",
    b"",
    b"",
    b"none",
    b"none",
    b"",
    b"",
)


def kexinit(lists: tuple[bytes, ...] = LISTS, *, guesses: bool = False) -> bytes:
    """The client's offer."""
    return bytes((KEXINIT,)) + bytes(16) + b"".join(map(text, lists)) + bytes((guesses,)) + bytes(4)


class Client:
    """Of one session. `say` gives the server's payloads, and keeps its steps."""

    def __init__(self, session: SshSession) -> None:
        self.session, self.steps = session, list[Step]()
        self.reader, self.writer = PacketReader(), PacketWriter(os.urandom)
        version, _, rest = session.greeting.partition(b"\n")
        self.version = version.rstrip(b"\r")
        self.reader.feed(rest)
        self.offer = self.reader.next() or b""
        self.feed(VERSION + b"\r\n")

    def feed(self, data: bytes) -> list[bytes]:
        """Bytes as they are."""
        steps = list(self.session.feed(data))
        self.steps += steps
        self.reader.feed(b"".join(step.reply for step in steps))
        return list(self._payloads())

    def _payloads(self) -> Iterator[bytes]:
        while (payload := self.reader.next()) is not None:
            yield payload
            if payload[0] == NEWKEYS:
                return

    def say(self, payload: bytes) -> list[bytes]:
        """A message."""
        return self.feed(self.writer.packet(payload))

    def exchange(self) -> None:
        """Keys, checked against the host's signature."""
        own, offered = X25519PrivateKey.generate(), kexinit()
        self.say(offered)
        public = own.public_key().public_bytes_raw()
        reply, _ = self.say(bytes((ECDH_INIT,)) + text(public))
        fields = Fields(reply[1:])
        blob, theirs, signature = fields.text(), fields.text(), Fields(fields.text())
        shared = mpint(
            int.from_bytes(own.exchange(X25519PublicKey.from_public_bytes(theirs)), "big")
        )
        said = (VERSION, self.version, offered, self.offer, blob, public, theirs)
        self.session_id = hashlib.sha256(b"".join(map(text, said)) + shared).digest()
        key = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key()
        signature.text()
        key.verify(signature.text(), self.session_id)

        def derive(letter: bytes) -> bytes:
            return hashlib.sha256(shared + self.session_id + letter + self.session_id).digest()

        self.say(bytes((NEWKEYS,)))
        self.writer.cipher = Gcm(derive(b"C")[:16], derive(b"A")[:12])
        self.reader.cipher = Gcm(derive(b"D")[:16], derive(b"B")[:12])
        self.say(bytes((SERVICE_REQUEST,)) + text(b"ssh-userauth"))

    def password(self, user: bytes, word: bytes) -> list[bytes]:
        """A login."""
        return self.say(auth(user, b"password", b"\0" + text(word)))

    def key(self, user: bytes, blob: bytes, sign: Ed25519PrivateKey | None = None) -> list[bytes]:
        """A key that is offered, or proven."""
        more = bytes((sign is not None,)) + text(b"ssh-ed25519") + text(blob)
        request = auth(user, b"publickey", more)
        if sign is not None:
            proof = sign.sign(text(self.session_id) + request)
            request += text(text(b"ssh-ed25519") + text(proof))
        return self.say(request)


def auth(user: bytes, method: bytes, more: bytes = b"") -> bytes:
    """A request to be let in."""
    return bytes((AUTH_REQUEST,)) + text(user) + text(CONNECTION) + text(method) + more
