"""SSH's packets and fields (RFC 4251, 4253, 4344, 5647). Pure: bytes in, payloads out."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAX_PACKET_BYTES: Final = 36_000
"""Of a packet's length field: RFC 4253, 6.1 wants 35,000 to be taken."""
MIN_PADDING_BYTES: Final = 4
_LENGTH_BYTES: Final = 4
_TAG_BYTES: Final = 16
_AES_BLOCK_BYTES: Final = 16
_PLAIN_BLOCK_BYTES: Final = 8


class Malformed(ValueError):  # noqa: N818 - what the bytes are
    """Bytes that are no SSH, or were changed on their way."""


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
    """A payload's fields, one after the other.

    Each method raises `Malformed` where there is none.
    """

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


class PacketCipher(Protocol):
    """How one direction's packets are written. `sequence`: of the packet, modulo 2^32."""

    head_bytes: int
    """What `size` has to see."""

    def size(self, head: bytes) -> int:
        """A whole packet's size; called once for each. Raises `Malformed` for one out of bounds."""
        ...

    def open(self, sequence: int, packet: bytes) -> bytes:
        """Its payload. Raises `Malformed`."""
        ...

    def seal(self, sequence: int, padded: bytes) -> bytes:
        """A packet of a padded payload."""
        ...

    block_bytes: int
    seals_length: bool
    """Whether the length field counts for the padding."""


def _checked_length(length: int) -> int:
    if not _PLAIN_BLOCK_BYTES <= length <= MAX_PACKET_BYTES:
        raise Malformed("Bad packet length")
    return length


def _payload(padded: bytes) -> bytes:
    padding = padded[0]
    if padding < MIN_PADDING_BYTES or padding + 2 > len(padded):
        raise Malformed("Corrupted padlen")
    return padded[1 : len(padded) - padding]


class Plain:
    """Before keys are exchanged."""

    head_bytes = _LENGTH_BYTES
    block_bytes = _PLAIN_BLOCK_BYTES
    seals_length = True

    def size(self, head: bytes) -> int:
        """See `PacketCipher`."""
        return _LENGTH_BYTES + _checked_length(int.from_bytes(head, "big"))

    def open(self, sequence: int, packet: bytes) -> bytes:  # noqa: ARG002
        """See `PacketCipher`."""
        return _payload(packet[_LENGTH_BYTES:])

    def seal(self, sequence: int, padded: bytes) -> bytes:  # noqa: ARG002
        """See `PacketCipher`."""
        return number(len(padded)) + padded


class Gcm:
    """AES-GCM as OpenSSH has it: the length stands in clear, and there is no other MAC."""

    head_bytes = _LENGTH_BYTES
    block_bytes = _AES_BLOCK_BYTES
    seals_length = False

    def __init__(self, key: bytes, iv: bytes) -> None:
        self._aead = AESGCM(key)
        self._fixed, self._counter = iv[:4], int.from_bytes(iv[4:12], "big")

    def size(self, head: bytes) -> int:
        """See `PacketCipher`."""
        return _LENGTH_BYTES + _checked_length(int.from_bytes(head, "big")) + _TAG_BYTES

    def _nonce(self) -> bytes:
        nonce = self._fixed + self._counter.to_bytes(8, "big")
        self._counter = (self._counter + 1) % (1 << 64)
        return nonce

    def open(self, sequence: int, packet: bytes) -> bytes:  # noqa: ARG002
        """See `PacketCipher`."""
        try:
            padded = self._aead.decrypt(
                self._nonce(), packet[_LENGTH_BYTES:], packet[:_LENGTH_BYTES]
            )
        except InvalidTag as error:
            raise Malformed("message authentication code incorrect") from error
        return _payload(padded)

    def seal(self, sequence: int, padded: bytes) -> bytes:  # noqa: ARG002
        """See `PacketCipher`."""
        length = number(len(padded))
        return length + self._aead.encrypt(self._nonce(), padded, length)


class Ctr:
    """AES in counter mode, with an HMAC of the clear text."""

    head_bytes = _AES_BLOCK_BYTES
    block_bytes = _AES_BLOCK_BYTES
    seals_length = True

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
    """One direction's packets. `cipher` may be changed between two of them."""

    def __init__(self) -> None:
        self.cipher: PacketCipher = Plain()
        self._buffer = bytearray()
        self._size = 0
        self._sequence = 0

    @property
    def rest(self) -> bytes:
        """Of a packet that isn't complete."""
        return bytes(self._buffer)

    def feed(self, data: bytes) -> None:
        """Take bytes. Call `next` until there is none before more are fed."""
        self._buffer += data

    def next(self) -> bytes | None:
        """The next packet's payload. Raises `Malformed`; nothing may be read after that."""
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
        self.cipher: PacketCipher = Plain()
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
