"""Random values in credentials' shapes, valid nowhere."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import string
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

# The size of HMAC-SHA256's output: a longer key would add little (RFC 2104, 3).
KEY_BYTES: Final = 32
ALNUM: Final = string.ascii_letters + string.digits
# RFC 4648, 6: AWS's key ids are written in it.
BASE32: Final = string.ascii_uppercase + "234567"
# In the order of GitHub's check digits.
BASE62: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
# `.internal` is reserved for private use: no such name leads to anybody.
DOMAIN: Final = "corp.internal"
_T = TypeVar("_T")


class RandomStream:
    """Reproducible random bytes: HMAC-SHA256 in counter mode."""

    def __init__(self, key: bytes, label: str) -> None:
        self._key = hmac.digest(key, label.encode(), hashlib.sha256)
        self._counter = 0
        self._rest = b""

    def take(self, count: int) -> bytes:
        while len(self._rest) < count:
            self._rest += hmac.digest(self._key, self._counter.to_bytes(8, "big"), hashlib.sha256)
            self._counter += 1
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken

    def below(self, bound: int) -> int:
        return int.from_bytes(self.take(8 + (bound.bit_length() + 7) // 8), "big") % bound

    def pick(self, choices: Sequence[_T]) -> _T:
        return choices[self.below(len(choices))]

    def text(self, count: int, alphabet: str = ALNUM) -> str:
        return "".join(self.pick(alphabet) for _ in range(count))


def github_token(stream: RandomStream) -> str:
    """Return a token with CRC-32 in base 62."""
    body, digits = stream.text(30), ""
    rest = binascii.crc32(body.encode())
    while rest:
        rest, digit = divmod(rest, 62)
        digits = BASE62[digit] + digits
    return f"ghp_{body}{digits.rjust(6, '0')}"


def card(stream: RandomStream) -> str:
    """Return a number of no issuer (9999)."""
    digits = "9999" + stream.text(11, string.digits)
    total = sum(sum(divmod(int(digit) * (2 - index % 2), 10)) for index, digit in enumerate(digits))
    return digits + str(-total % 10)


def iban(stream: RandomStream) -> str:
    """Return a German number of no bank."""
    # A bank code of eight digits, then an account of ten.
    account = "00" + stream.text(16, string.digits)
    # ISO 13616: DE as 13 and 14, and 00 for the check digits to be found.
    check = 98 - int(account + "131400") % 97
    return f"DE{check:02}{account}"


def host_name(stream: RandomStream, service: str) -> str:
    return f"{service}-{stream.take(5).hex()}.{DOMAIN}"


def people(stream: RandomStream) -> Iterator[tuple[str, str]]:
    """Yield invented names and mail addresses, without end."""
    from faker.generator import Generator
    from faker.providers.person.en_US import Provider

    generator = Generator()
    # Not Faker's shared generator: other code of this process may use and seed that one.
    generator.seed_instance(int.from_bytes(stream.take(8)))
    names = Provider(generator)
    while True:
        first, last = names.first_name(), names.last_name()
        box = re.sub("[^a-z.]", "", f"{first}.{last}".lower())
        yield f"{first} {last}", f"{box}{stream.below(9000) + 1000}@{DOMAIN}"


def make_credentials(stream: RandomStream) -> dict[str, str]:
    """Return `access_key_id`, `secret_key`, `session_token` of a role at AWS."""
    return {
        "access_key_id": "ASIA" + stream.text(16, BASE32),
        "secret_key": stream.text(40, f"{ALNUM}+/"),
        # As AWS's own begin: the base64 of `origin_ec` behind three bytes.
        "session_token": "IQoJb3JpZ2luX2Vj" + base64.b64encode(stream.take(240)).decode(),
    }


def _text(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def public_of(seed: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def public_blob(public: bytes) -> bytes:
    return _text(b"ssh-ed25519") + _text(public)


def public_line(blob: bytes) -> str:
    return "ssh-ed25519 " + base64.b64encode(blob).decode()


def fingerprint(blob: bytes) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def openssh_private(seed: bytes, check: bytes, comment: bytes) -> str:
    """Return a key's file, as `ssh-keygen` writes it."""
    # Built here: the library's own writer draws random check bytes.
    public = public_of(seed)
    blob = public_blob(public)
    # The same four bytes twice: OpenSSH tells by them that a passphrase was right.
    private = check + check + blob + _text(seed + public) + _text(comment)
    # OpenSSH's padding is 1, 2, 3 and so on, to blocks of eight bytes where there is no cipher.
    private += bytes(range(1, -len(private) % 8 + 1))
    whole = b"openssh-key-v1\0" + _text(b"none") * 2 + _text(b"") + (1).to_bytes(4, "big")
    encoded = base64.b64encode(whole + _text(blob) + _text(private)).decode()
    # In lines of 70 characters, as ssh-keygen writes them.
    lines = "\n".join(encoded[at : at + 70] for at in range(0, len(encoded), 70))
    return f"-----BEGIN OPENSSH PRIVATE KEY-----\n{lines}\n-----END OPENSSH PRIVATE KEY-----\n"
