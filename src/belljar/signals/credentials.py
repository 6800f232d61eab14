"""Values in the shapes of credentials, and SSH keys as OpenSSH writes them. Pure but for the
randomness passed in.
"""

from __future__ import annotations

import base64
import hashlib
import string
from collections.abc import Callable
from typing import Final

BASE32: Final = f"{string.ascii_uppercase}234567"
WORD: Final = f"{string.ascii_letters}{string.digits}"


def pick(alphabet: str, count: int, random: Callable[[int], bytes]) -> str:
    """So many characters of an alphabet of at most 256."""
    return "".join(alphabet[byte % len(alphabet)] for byte in random(count))


def make_credentials(random: Callable[[int], bytes]) -> dict[str, str]:
    """As AWS gives a machine's role: `access_key_id`, `secret_key`, `session_token`."""
    return {
        "access_key_id": "ASIA" + pick(BASE32, 16, random),
        "secret_key": pick(f"{WORD}+/", 40, random),
        "session_token": "IQoJb3JpZ2luX2Vj" + base64.b64encode(random(240)).decode(),
    }


ED25519_BYTES: Final = 32
"""Of a raw key, public or private."""


def _text(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def public_of(seed: bytes) -> bytes:
    """The public key of a private one, both as raw bytes."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def public_blob(public: bytes) -> bytes:
    """A raw public key as SSH sends it."""
    return _text(b"ssh-ed25519") + _text(public)


def public_line(blob: bytes) -> str:
    """As a public key's file and `known_hosts` have it, without a comment."""
    return "ssh-ed25519 " + base64.b64encode(blob).decode()


def fingerprint(blob: bytes) -> str:
    """As `ssh-keygen -l` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def openssh_private(seed: bytes, check: bytes, comment: bytes) -> str:
    """As `ssh-keygen -t ed25519` writes it without a passphrase. The library's own way to write it
    draws random check bytes, so that the same stream would not give the same file."""
    public = public_of(seed)
    blob = public_blob(public)
    private = check + check + blob + _text(seed + public) + _text(comment)
    private += bytes(range(1, -len(private) % 8 + 1))
    whole = b"openssh-key-v1\0" + _text(b"none") * 2 + _text(b"") + (1).to_bytes(4, "big")
    encoded = base64.b64encode(whole + _text(blob) + _text(private)).decode()
    lines = "\n".join(encoded[at : at + 70] for at in range(0, len(encoded), 70))
    return f"-----BEGIN OPENSSH PRIVATE KEY-----\n{lines}\n-----END OPENSSH PRIVATE KEY-----\n"
