"""SSH's packets, fields and key exchange (RFC 4251, 4253, 4344, 5647, 8731). Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from belljar.dataclass import dataclass, field
from belljar.signals.credentials import public_blob

# Of a packet's length field: RFC 4253, 6.1 wants 35,000 to be taken
MAX_PACKET_BYTES: Final = 36_000
MIN_PADDING_BYTES: Final = 4
_LENGTH_BYTES: Final = 4
_TAG_BYTES: Final = 16
_AES_BLOCK_BYTES: Final = 16
_PLAIN_BLOCK_BYTES: Final = 8


class Malformed(ValueError):  # noqa: N818 - what the bytes are
    """Bytes that are no SSH, or were changed."""


def number(value: int) -> bytes:
    """A uint32."""
    return value.to_bytes(4, "big")


def text(data: bytes) -> bytes:
    """A string: its length, and itself."""
    return number(len(data)) + data


def mpint(value: int) -> bytes:
    """A number of any size; not negative."""
    return text(value.to_bytes(value.bit_length() // 8 + 1, "big") if value else b"")


class Fields:
    """A payload's fields. Each method raises `Malformed` where there is none."""

    def __init__(self, payload: bytes) -> None:
        self._payload, self._at = payload, 0

    def take(self, count: int) -> bytes:
        """So many bytes."""
        taken = self._payload[self._at : self._at + count]
        if len(taken) < count:
            raise Malformed("a message is too short")
        self._at += count
        return taken

    def flag(self) -> bool:
        """A boolean."""
        return self.take(1) != b"\0"

    def number(self) -> int:
        """A uint32."""
        return int.from_bytes(self.take(4), "big")

    def text(self) -> bytes:
        """A string."""
        return self.take(self.number())

    def names(self) -> tuple[str, ...]:
        """A name list."""
        return tuple(self.text().decode("ascii", "replace").split(","))


def _checked_length(length: int) -> int:
    if not _PLAIN_BLOCK_BYTES <= length <= MAX_PACKET_BYTES:
        raise Malformed("Bad packet length")
    return length


def _payload(padded: bytes) -> bytes:
    padding = padded[0]
    if padding < MIN_PADDING_BYTES or padding + 2 > len(padded):
        raise Malformed("Corrupted padlen")
    return padded[1 : len(padded) - padding]


class PacketCipher:
    """One direction's packets: plain, before keys.

    `head_bytes`: what `size` has to see. `seals_length`: the length field counts for the padding.
    """

    head_bytes = _LENGTH_BYTES
    block_bytes = _PLAIN_BLOCK_BYTES
    seals_length = True

    def size(self, head: bytes) -> int:
        """A whole packet's size; called once for each. Raises `Malformed` for one out of bounds."""
        return _LENGTH_BYTES + _checked_length(int.from_bytes(head, "big"))

    def open(self, sequence: int, packet: bytes) -> bytes:  # noqa: ARG002
        """Its payload; `sequence` is modulo 2^32. Raises `Malformed`."""
        return _payload(packet[_LENGTH_BYTES:])

    def seal(self, sequence: int, padded: bytes) -> bytes:  # noqa: ARG002
        """A packet of a padded payload."""
        return number(len(padded)) + padded


class Gcm(PacketCipher):
    """OpenSSH's AES-GCM: a clear length, no other MAC."""

    block_bytes = _AES_BLOCK_BYTES
    seals_length = False

    def __init__(self, key: bytes, iv: bytes) -> None:
        self._aead = AESGCM(key)
        self._fixed, self._counter = iv[:4], int.from_bytes(iv[4:12], "big")

    def size(self, head: bytes) -> int:
        """See `PacketCipher`."""
        return super().size(head) + _TAG_BYTES

    def _nonce(self) -> bytes:
        nonce = self._fixed + self._counter.to_bytes(8, "big")
        self._counter = (self._counter + 1) % (1 << 64)
        return nonce

    def open(self, sequence: int, packet: bytes) -> bytes:  # noqa: ARG002
        """See `PacketCipher`."""
        head, sealed = packet[:_LENGTH_BYTES], packet[_LENGTH_BYTES:]
        try:
            padded = self._aead.decrypt(self._nonce(), sealed, head)
        except InvalidTag as error:
            raise Malformed("message authentication code incorrect") from error
        return _payload(padded)

    def seal(self, sequence: int, padded: bytes) -> bytes:  # noqa: ARG002
        """See `PacketCipher`."""
        length = number(len(padded))
        return length + self._aead.encrypt(self._nonce(), padded, length)


class Ctr(PacketCipher):
    """AES in counter mode, with an HMAC of the clear text."""

    head_bytes = block_bytes = _AES_BLOCK_BYTES

    def __init__(self, key: bytes, iv: bytes, mac_key: bytes, mac: str) -> None:
        # The same stream of bytes both ways: a cipher is used for one direction alone.
        self._stream = Cipher(algorithms.AES(key), modes.CTR(iv)).encryptor()
        self._mac_key, self._mac = mac_key, mac
        self._mac_bytes = hashlib.new(mac).digest_size
        self._head = b""

    def size(self, head: bytes) -> int:
        """See `PacketCipher`."""
        self._head = self._stream.update(head)
        length = _checked_length(int.from_bytes(self._head[:_LENGTH_BYTES], "big"))
        if (_LENGTH_BYTES + length) % _AES_BLOCK_BYTES:
            raise Malformed("Bad packet length")
        return _LENGTH_BYTES + length + self._mac_bytes

    def open(self, sequence: int, packet: bytes) -> bytes:
        """See `PacketCipher`."""
        end = len(packet) - self._mac_bytes
        clear = self._head + self._stream.update(packet[_AES_BLOCK_BYTES:end])
        if not hmac.compare_digest(self._digest(sequence, clear), packet[end:]):
            raise Malformed("Corrupted MAC on input.")
        return _payload(clear[_LENGTH_BYTES:])

    def seal(self, sequence: int, padded: bytes) -> bytes:
        """See `PacketCipher`."""
        clear = number(len(padded)) + padded
        return self._stream.update(clear) + self._digest(sequence, clear)

    def _digest(self, sequence: int, clear: bytes) -> bytes:
        return hmac.digest(self._mac_key, number(sequence) + clear, self._mac)


class PacketReader:
    """`cipher` may be changed between two packets."""

    def __init__(self) -> None:
        self.cipher: PacketCipher = PacketCipher()
        self._buffer = bytearray()
        self._size = self._sequence = 0

    @property
    def rest(self) -> bytes:
        """Bytes of an incomplete packet."""
        return bytes(self._buffer)

    def feed(self, data: bytes) -> None:
        """Call `next` until None before more are fed."""
        self._buffer += data

    def next(self) -> bytes | None:
        """The next payload. Raises `Malformed`; nothing may be read after that."""
        head_bytes = self.cipher.head_bytes
        if not self._size:
            if len(self._buffer) < head_bytes:
                return None
            self._size = self.cipher.size(bytes(self._buffer[:head_bytes]))
        if len(self._buffer) < self._size:
            return None
        packet, self._size = bytes(self._buffer[: self._size]), 0
        del self._buffer[: len(packet)]
        payload = self.cipher.open(self._sequence, packet)
        self._sequence = (self._sequence + 1) % (1 << 32)
        return payload


class PacketWriter:
    """The other direction's."""

    def __init__(self, random: Callable[[int], bytes]) -> None:
        self.cipher: PacketCipher = PacketCipher()
        self._random = random
        self._sequence = 0

    def packet(self, payload: bytes) -> bytes:
        """A payload as it goes out."""
        block = self.cipher.block_bytes
        head = 1 + (_LENGTH_BYTES if self.cipher.seals_length else 0)
        padding = block - (head + len(payload)) % block
        padding += block if padding < MIN_PADDING_BYTES else 0
        padded = bytes((padding,)) + payload + self._random(padding)
        sealed = self.cipher.seal(self._sequence, padded)
        self._sequence = (self._sequence + 1) % (1 << 32)
        return sealed


KEXINIT: Final = 20
ECDH_INIT: Final = 30
_ECDH_REPLY: Final = 31
ED25519: Final = b"ssh-ed25519"
_METHODS: Final = ("curve25519-sha256", "curve25519-sha256@libssh.org")
# Bytes of a key
_CIPHERS: Final[Mapping[str, int]] = {
    "aes128-ctr": 16,
    "aes192-ctr": 24,
    "aes256-ctr": 32,
    "aes128-gcm@openssh.com": 16,
    "aes256-gcm@openssh.com": 32,
}
_MACS: Final[Mapping[str, str]] = {"hmac-sha2-256": "sha256", "hmac-sha2-512": "sha512"}
_BOTH_WAYS: Final[tuple[tuple[str, ...], ...]] = (tuple(_CIPHERS), tuple(_MACS), ("none",), ())
_OFFERED: Final = (
    _METHODS,
    (ED25519.decode(),),
    *(names for names in _BOTH_WAYS for _ in range(2)),
)
_COOKIE_BYTES: Final = 16
_KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What both sides can do. `skips`: the client's next message, a wrong guess, is ignored."""

    ciphers: tuple[str, str]
    macs: tuple[str, str]
    skips: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """The reply, and the ciphers from then on."""

    reply: bytes
    session_id: bytes
    incoming: PacketCipher = field(repr=False)
    outgoing: PacketCipher = field(repr=False)


def offer(random: Callable[[int], bytes]) -> bytes:
    """The server's KEXINIT."""
    lists = b"".join(text(",".join(names).encode()) for names in _OFFERED)
    return bytes((KEXINIT,)) + random(_COOKIE_BYTES) + lists + b"\0" + number(0)


def choose(payload: bytes) -> Chosen:
    """Of a client's KEXINIT. Raises `Malformed`, also with nothing in common."""
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
        what = "key exchange method, host key type, cipher, MAC or compression"
        raise Malformed(f"no matching {what}")
    is_right = (wanted[0][0], wanted[1][0]) == (_METHODS[0], ED25519.decode())
    ciphers, macs = (chosen[2], chosen[3]), (chosen[4], chosen[5])
    return Chosen(ciphers=ciphers, macs=macs, skips=has_guessed and not is_right)


def exchange(
    payload: bytes,
    chosen: Chosen,
    host_key: Ed25519PrivateKey,
    begun: tuple[bytes, bytes, bytes, bytes],
    random: Callable[[int], bytes],
) -> Exchanged:
    """Of a client's ECDH_INIT. Raises `Malformed`.

    `begun`: the two version lines, the client's first, and the two KEXINIT likewise.
    """
    fields = Fields(payload)
    fields.take(1)
    theirs = fields.text()
    own = X25519PrivateKey.from_private_bytes(random(_KEY_BYTES))
    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError as error:  # of a wrong size, or of small order
        raise Malformed("invalid public key") from error
    public = own.public_key().public_bytes_raw()
    blob = public_blob(host_key.public_key().public_bytes_raw())
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
