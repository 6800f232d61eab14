"""The server's side of SSH's key exchange (RFC 4253, 7 and 8; RFC 8731). Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from belljar.dataclass import dataclass
from belljar.network.stand_ins.ssh.wire import (
    Ctr,
    Fields,
    Gcm,
    Malformed,
    PacketCipher,
    mpint,
    number,
    text,
)
from belljar.signals.ssh_keys import public_blob

KEXINIT: Final = 20
ECDH_INIT: Final = 30
_ECDH_REPLY: Final = 31
ED25519: Final = b"ssh-ed25519"
_METHODS: Final = ("curve25519-sha256", "curve25519-sha256@libssh.org")
_CIPHERS: Final[Mapping[str, int]] = {
    "aes128-ctr": 16,
    "aes192-ctr": 24,
    "aes256-ctr": 32,
    "aes128-gcm@openssh.com": 16,
    "aes256-gcm@openssh.com": 32,
}
"""Bytes of a key."""
_MACS: Final[Mapping[str, str]] = {"hmac-sha2-256": "sha256", "hmac-sha2-512": "sha512"}
_OFFERED: Final = (
    _METHODS,
    (ED25519.decode(),),
    tuple(_CIPHERS),
    tuple(_CIPHERS),
    tuple(_MACS),
    tuple(_MACS),
    ("none",),
    ("none",),
    (),
    (),
)
_COOKIE_BYTES: Final = 16
_KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What both sides can do.

    `skips`: the client has guessed wrong, and its next message counts for nothing.
    """

    ciphers: tuple[str, str]
    macs: tuple[str, str]
    skips: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """The reply, and what the two directions are sealed with from then on."""

    reply: bytes
    session_id: bytes
    incoming: PacketCipher = field(repr=False)
    outgoing: PacketCipher = field(repr=False)


def offer(random: Callable[[int], bytes]) -> bytes:
    """The server's KEXINIT."""
    lists = b"".join(text(",".join(names).encode()) for names in _OFFERED)
    return bytes((KEXINIT,)) + random(_COOKIE_BYTES) + lists + b"\0" + number(0)


def choose(payload: bytes) -> Chosen:
    """Of a client's KEXINIT. Raises `Malformed`, also where both have nothing in common."""
    fields = Fields(payload)
    fields.take(1 + _COOKIE_BYTES)
    wanted = [fields.names() for _ in _OFFERED]
    has_guessed = fields.flag()
    chosen = []
    for asked, offered in zip(wanted[:8], _OFFERED[:8], strict=True):
        common = [name for name in asked if name in offered]
        # With AES-GCM no MAC is needed: the lists of MACs may have nothing in common then.
        chosen.append(common[0] if common else "")
    needs_mac = (not chosen[2].endswith(".com"), not chosen[3].endswith(".com"))
    needed = [*chosen[:4], *(mac for mac, need in zip(chosen[4:6], needs_mac, strict=True) if need)]
    if not all((*needed, *chosen[6:])):
        raise Malformed(
            "no matching key exchange method, host key type, cipher, MAC or compression"
        )
    is_right = (wanted[0][0], wanted[1][0]) == (_METHODS[0], ED25519.decode())
    return Chosen(
        ciphers=(chosen[2], chosen[3]),
        macs=(chosen[4], chosen[5]),
        skips=has_guessed and not is_right,
    )


def exchange(
    payload: bytes,
    chosen: Chosen,
    host_key: Ed25519PrivateKey,
    begun: tuple[bytes, bytes, bytes, bytes],
    random: Callable[[int], bytes],
) -> Exchanged:
    """Of a client's ECDH_INIT. Raises `Malformed`.

    Args:
        begun: the two version lines, the client's first, and the two KEXINIT likewise.
    """
    fields = Fields(payload)
    fields.take(1)
    theirs = fields.text()
    own = X25519PrivateKey.from_private_bytes(random(_KEY_BYTES))
    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError as error:  # of a wrong size, or of small order
        raise Malformed("invalid public key") from error
    public, blob = own.public_key().public_bytes_raw(), public_blob(_public(host_key))
    shared = mpint(int.from_bytes(secret, "big"))
    hashed = b"".join(map(text, (*begun, blob, theirs, public))) + shared
    session_id = hashlib.sha256(hashed).digest()
    signature = text(ED25519) + text(host_key.sign(session_id))

    def derive(letter: bytes, count: int) -> bytes:
        key = hashlib.sha256(shared + session_id + letter + session_id).digest()
        while len(key) < count:
            key += hashlib.sha256(shared + session_id + key).digest()
        return key[:count]

    def cipher(index: int) -> PacketCipher:
        name = chosen.ciphers[index]
        iv, key = b"AB"[index : index + 1], b"CD"[index : index + 1]
        if name.endswith(".com"):
            return Gcm(derive(key, _CIPHERS[name]), derive(iv, 12))
        mac = _MACS[chosen.macs[index]]
        mac_key = derive(b"EF"[index : index + 1], hashlib.new(mac).digest_size)
        return Ctr(derive(key, _CIPHERS[name]), derive(iv, 16), mac_key, mac)

    return Exchanged(
        reply=bytes((_ECDH_REPLY,)) + text(blob) + text(public) + text(signature),
        session_id=session_id,
        incoming=cipher(0),
        outgoing=cipher(1),
    )


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()
