"""The key that signs checkpoints: made on first use, kept by this host's user.

Imports `cryptography` only to sign or verify: listing runs does neither.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Final

from belljar.dataclass import dataclass, field
from belljar.errors import HostError, LedgerError

KEY_FILE: Final = "ledger-ed25519.pem"
# An Ed25519 key in PEM has 119 bytes; with comments around it, a few hundred.
_MAX_KEY_FILE_BYTES: Final = 4096


def fingerprint_of(public_key_hex: str) -> str:
    """Return the SHA-256 (hex) of a public key's 32 raw bytes."""
    return hashlib.sha256(bytes.fromhex(public_key_hex)).hexdigest()


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key (32-byte seed) and its hex public key."""

    seed: bytes = field(repr=False)
    public_key: str

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.public_key)

    def sign(self, payload: bytes) -> str:
        """Return the Ed25519 signature, 128 hex digits."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.seed).sign(payload).hex()


def signature_is_good(public_key_hex: str, signature_hex: str, payload: bytes) -> bool:
    """Return whether this key signed this payload. It never raises."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key_hex)).verify(
            bytes.fromhex(signature_hex), payload
        )
    # ValueError: text that is no hex, or a key of another length.
    except (InvalidSignature, ValueError):
        return False
    return True


def load_or_make_key(home: Path) -> SigningKey:
    """Load this host's key under `home/keys`; make it atomically (0600) if there is none.

    Raises `HostError` when unusable, `LedgerError` when damaged or open to others.
    """
    path = home / "keys" / KEY_FILE
    try:
        # Another process may make it meanwhile: `write_once` leaves that one, and it is loaded
        # below.
        if not path.exists():
            _make(path)
        return _load(path)
    except OSError as error:
        what = f"the signing key can't be used: {error.strerror}; so nothing can be recorded"
        hint = "set BELLJAR_HOME to a directory that this user can write and that has space"
        raise HostError(what, where=str(path), hint=hint) from error


def local_fingerprint(home: Path) -> str | None:
    try:
        return _load(home / "keys" / KEY_FILE).fingerprint
    except (OSError, LedgerError):
        return None


def parse_fingerprint(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise ValueError("a key fingerprint is 64 hex digits, as `belljar ledger verify` prints it")
    return text


def _load(path: Path) -> SigningKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    # No link is followed, and a pipe in the key's place makes nobody wait.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
            hint = f"chmod 600 it if you trust it, else move it away: {path}"
            raise LedgerError("the signing key is open to others", where=str(path), hint=hint)
        content = file.read(_MAX_KEY_FILE_BYTES)
    private = None
    with contextlib.suppress(ValueError, TypeError):
        private = load_pem_private_key(content, password=None)
    if not isinstance(private, Ed25519PrivateKey):
        # Never replaced: that would orphan older runs silently.
        what = "the signing key is damaged, or not an Ed25519 key"
        hint = "restore it, or move it away: a new one is made"
        raise LedgerError(what, where=str(path), hint=hint)
    return SigningKey(private.private_bytes_raw(), private.public_key().public_bytes_raw().hex())


def _make(path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    from belljar.store.home import sync_file  # late: `belljar-verify` has no store

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private = Ed25519PrivateKey.generate()
    write_once(path, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    # Their names, too: a power loss must not leave runs whose key nobody has.
    sync_file(path.parent)
    sync_file(path.parent.parent)


def write_once(path: Path, content: bytes) -> None:
    """Make a file of this user's alone, whole or not at all; one that is there stays.

    Raises `OSError`.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        # A link, not a rename: a second process must use the first one's, not replace it.
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(fresh)
    finally:
        fresh.unlink()
