"""What both sides choose, and keys."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.ssh_client import LISTS, kexinit

from belljar.network.stand_ins.ssh.wire import KEXINIT, Malformed, choose, exchange, text

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))


def with_list(at: int, names: bytes) -> tuple[bytes, ...]:
    """The client's lists with another one there."""
    return (*LISTS[:at], names, *LISTS[at + 1 :])


def test_the_clients_order_decides() -> None:
    """The first that the server has."""
    ciphers = b"chacha20-poly1305@openssh.com,aes256-ctr,aes128-ctr"
    chosen = choose(kexinit((*LISTS[:2], ciphers, LISTS[3], b"x,hmac-sha2-512", *LISTS[5:])))
    assert chosen.ciphers == ("aes256-ctr", "aes128-gcm@openssh.com")
    assert chosen.macs[0] == "hmac-sha2-512"


@pytest.mark.parametrize("at", [0, 1, 2, 3, 6, 7])
def test_nothing_in_common_is_refused(at: int) -> None:
    """And so is a cipher without a MAC that needs one."""
    with pytest.raises(Malformed):
        choose(kexinit(with_list(at, b"none-of-these")))
    with pytest.raises(Malformed):
        choose(kexinit(with_list(2, b"aes128-ctr")))


def test_a_wrong_guess_counts_for_nothing() -> None:
    """RFC 4253, 7."""
    assert choose(kexinit(with_list(0, b"x,curve25519-sha256"), guesses=True)).skips
    assert not choose(kexinit(guesses=True)).skips


@given(st.binary(max_size=300))
def test_any_offer_is_chosen_from_or_refused(data: bytes) -> None:
    """Nothing else is raised."""
    with contextlib.suppress(Malformed):
        choose(bytes((KEXINIT,)) + data)


@given(st.binary(max_size=60) | st.just(bytes(32)) | st.binary(min_size=32, max_size=32).map(text))
def test_any_public_key_is_taken_or_refused(data: bytes) -> None:
    """Of any length, and of small order."""
    chosen = replace(choose(kexinit()), skips=False)
    try:
        made = exchange(b"\x1e" + data, chosen, KEY, (b"", b"", b"", b""), os.urandom)
    except Malformed:
        return
    assert len(made.session_id) == 32


def test_a_key_of_small_order_is_refused() -> None:
    """It would make the secret known."""
    with pytest.raises(Malformed):
        exchange(
            b"\x1e" + text(bytes(32)), choose(kexinit()), KEY, (b"", b"", b"", b""), os.urandom
        )
