"""Keys that OpenSSH reads."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from hypothesis import given
from hypothesis import strategies as st

from belljar.signals.credentials import (
    fingerprint,
    openssh_private,
    public_blob,
    public_line,
    public_of,
)


@given(
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=4, max_size=4),
    st.text("abc@.", max_size=40),
)
def test_any_seed_gives_a_pair_that_is_read(seed: bytes, check: bytes, comment: str) -> None:
    """The file holds the seed, and its public half is that of the line."""
    key = load_ssh_private_key(openssh_private(seed, check, comment.encode()).encode(), None)
    assert isinstance(key, Ed25519PrivateKey)
    assert key.private_bytes_raw() == seed
    line = public_line(public_blob(public_of(seed)))
    assert load_ssh_public_key(line.encode()) == key.public_key()


def test_a_fingerprint_is_ssh_keygens() -> None:
    """Of the key of 32 zeros, as `ssh-keygen -lf` prints it."""
    assert (
        fingerprint(public_blob(bytes(32))) == "SHA256:kmYcvdi2GkPeWxB6XLjrZB8JHsy2Hm8luHMFp9GMvqk"
    )
