"""Signs a repository with one Ed25519 key. OpenPGP: RFC 4880, EdDSA by RFC 9580's algorithm 22."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_EDDSA: Final = 22
_SHA256: Final = 8
_CURVE: Final = bytes.fromhex("092b06010401da470f01")
_SIGNATURE, _PUBLIC_KEY, _USER_ID = 2, 6, 13
_TEXT, _CERTIFICATION = 0x01, 0x13


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPgpKey:
    """A key with one user id, made for a range and gone with it."""

    private: Ed25519PrivateKey
    user: str
    made_s: int

    @classmethod
    def new(cls, user: str, made_s: int) -> OpenPgpKey:
        """A key from the operating system's randomness."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(private=Ed25519PrivateKey.generate(), user=user, made_s=made_s)

    def certificate(self) -> str:
        """The public key with its user id, ASCII-armoured."""
        user = self.user.encode()
        signed = self._framed_key() + b"\xb4" + len(user).to_bytes(4, "big") + user
        # Key flags: certify and sign. Preferred hash: SHA-256.
        usage = _subpacket(27, b"\x03") + _subpacket(21, bytes([_SHA256]))
        binding = self._signature(_CERTIFICATION, signed, usage)
        packets = _packet(_PUBLIC_KEY, self._key_body()) + _packet(_USER_ID, user) + binding
        return _armour("PUBLIC KEY BLOCK", packets)

    def clear_signed(self, text: str) -> str:
        """`InRelease`; lines lose trailing white space."""
        lines = [line.rstrip(" \t\r") for line in text.rstrip("\n").split("\n")]
        signature = self._signature(_TEXT, "\r\n".join(lines).encode())
        escaped = "\n".join(f"- {line}" if line.startswith("-") else line for line in lines)
        head = "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256"
        return f"{head}\n\n{escaped}\n{_armour('SIGNATURE', signature)}"

    @property
    def fingerprint(self) -> bytes:
        """Of version 4: SHA-1 of the framed key."""
        return hashlib.sha1(self._framed_key(), usedforsecurity=False).digest()

    def _key_body(self) -> bytes:
        public = self.private.public_key().public_bytes_raw()
        made = self.made_s.to_bytes(4, "big")
        return b"\x04" + made + bytes([_EDDSA]) + _CURVE + _number(b"\x40" + public)

    def _framed_key(self) -> bytes:
        body = self._key_body()
        return b"\x99" + len(body).to_bytes(2, "big") + body

    def _signature(self, kind: int, content: bytes, more: bytes = b"") -> bytes:
        made = _subpacket(2, self.made_s.to_bytes(4, "big"))
        hashed = made + _subpacket(33, b"\x04" + self.fingerprint) + more
        head = bytes([4, kind, _EDDSA, _SHA256]) + len(hashed).to_bytes(2, "big") + hashed
        trailer = b"\x04\xff" + len(head).to_bytes(4, "big")
        digest = hashlib.sha256(content + head + trailer).digest()
        raw = self.private.sign(digest)
        issuer = _subpacket(16, self.fingerprint[-8:])
        unhashed = len(issuer).to_bytes(2, "big") + issuer
        numbers = _number(raw[:32]) + _number(raw[32:])
        return _packet(_SIGNATURE, head + unhashed + digest[:2] + numbers)


def _subpacket(kind: int, content: bytes) -> bytes:
    return bytes([len(content) + 1, kind]) + content


def _number(content: bytes) -> bytes:
    """A multiprecision integer, its length in bits first."""
    stripped = content.lstrip(b"\0")
    return int.from_bytes(stripped, "big").bit_length().to_bytes(2, "big") + stripped


def _packet(tag: int, body: bytes) -> bytes:
    """New format; bodies here are below 8384 bytes."""
    size = len(body)
    length = bytes([size]) if size < 192 else bytes([(size - 192 >> 8) + 192, size - 192 & 0xFF])
    return bytes([0xC0 | tag]) + length + body


def _armour(title: str, packets: bytes) -> str:
    encoded = base64.b64encode(packets).decode()
    lines = [encoded[start : start + 64] for start in range(0, len(encoded), 64)]
    crc = 0xB704CE  # CRC-24: RFC 4880, 6.1
    for byte in packets:
        crc ^= byte << 16
        for _ in range(8):
            crc = crc << 1 ^ (0x1864CFB if crc & 0x800000 else 0)
    check = base64.b64encode((crc & 0xFFFFFF).to_bytes(3, "big")).decode()
    begin, end = f"-----BEGIN PGP {title}-----", f"-----END PGP {title}-----"
    return "\n".join([begin, "", *lines, f"={check}", end, ""])
