"""The signatures, judged by GnuPG's verifier."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from belljar.network.stand_ins.openpgp import SigningKey

TEXT = "Origin: Debian\n- a dash\nline with spaces   \n\nlast\n"


@pytest.fixture
def gpgv() -> str:
    """GnuPG's verifier, which apt brings."""
    found = shutil.which("gpgv")
    if found is None:
        pytest.skip("gpgv isn't installed: apt-get install gpgv")
    return found


def without_armour(text: str) -> tuple[bytes, bytes]:
    """What is in an ASCII armour, and its checksum."""
    lines = text.split("\n")
    end = next(n for n, line in enumerate(lines) if line.startswith("="))
    return base64.b64decode("".join(lines[2:end])), base64.b64decode(lines[end][1:])


def keyring(directory: Path, key: SigningKey) -> Path:
    """The certificate without its armour."""
    path = directory / "key.gpg"
    path.write_bytes(without_armour(key.certificate())[0])
    return path


def verify(gpgv: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the verifier."""
    return subprocess.run([gpgv, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_the_verifier_accepts_what_was_signed_and_nothing_else(tmp_path: Path, gpgv: str) -> None:
    """Clear-signed and detached, several keys (so that numbers with leading zeros come by); a
    changed byte is a bad signature."""
    for number in range(20):
        key = SigningKey.new("Somebody <a@x.example>", 1_700_000_000 + number)
        ring = keyring(tmp_path, key)
        message, plain, signature = (
            tmp_path / "InRelease",
            tmp_path / "Release",
            tmp_path / "Release.gpg",
        )
        message.write_text(key.clear_signed(TEXT))
        plain.write_text(TEXT)
        signature.write_text(key.detached(TEXT.encode()))
        assert verify(gpgv, "--keyring", ring, message).returncode == 0
        done = verify(gpgv, "--keyring", ring, signature, plain)
        assert done.returncode == 0
        assert key.fingerprint.hex().upper() in done.stderr
        message.write_text(message.read_text().replace("Origin", "0rigin"))
        assert "BAD signature" in verify(gpgv, "--keyring", ring, message).stderr
        plain.write_text(TEXT + "x")
        assert "BAD signature" in verify(gpgv, "--keyring", ring, signature, plain).stderr


def test_gnupg_imports_the_certificate(tmp_path: Path) -> None:
    """With its user id and the right to sign: the binding signature holds."""
    gpg = shutil.which("gpg")
    if gpg is None:
        pytest.skip("gpg isn't installed: apt-get install gpg")
    key = SigningKey.new("Somebody <a@x.example>", 1_700_000_000)
    argv = [
        gpg,
        "--homedir",
        str(tmp_path),
        "--no-autostart",
        "--batch",
        "--with-colons",
        "--show-keys",
    ]
    done = subprocess.run(argv, input=key.certificate(), capture_output=True, text=True, check=True)
    lines = [line.split(":") for line in done.stdout.splitlines()]
    assert [line[9] for line in lines if line[0] == "uid"] == ["Somebody <a@x.example>"]
    assert "s" in next(line[11] for line in lines if line[0] == "pub")


@pytest.mark.parametrize(("chars", "length"), [(191, b"\xbf"), (192, b"\xc0\0")])
def test_the_lengths_of_packets(chars: int, length: bytes) -> None:
    """The borders of RFC 4880, 4.2.2."""
    user = "u" * chars
    content, _ = without_armour(SigningKey.new(user, 1_700_000_000).certificate())
    assert b"\xcd" + length + user.encode() in content


def test_the_checksum_of_an_armour() -> None:
    """RFC 4880, 6.1: the remainder of all bits after the initial value."""
    content, checksum = without_armour(SigningKey.new("x", 1_700_000_000).certificate())
    bits = (0xB704CE << 8 * len(content)) ^ int.from_bytes(content, "big") << 24
    for at in reversed(range(8 * len(content))):
        if bits >> at + 24 & 1:
            bits ^= 0x1864CFB << at
    assert int.from_bytes(checksum, "big") == bits


class FixedKey:
    """In place of a private key: its signature is known."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def sign(self, _digest: bytes) -> bytes:
        """Always the same."""
        return self.raw

    def public_key(self) -> FixedKey:
        """Itself."""
        return self

    def public_bytes_raw(self) -> bytes:
        """Any."""
        return bytes(32)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
@example(b"\x01".rjust(32, b"\0"), b"\x01\xff".rjust(32, b"\0"))  # RFC 4880, 3.2
@settings(deadline=None)
def test_a_number_keeps_its_value(first: bytes, second: bytes) -> None:
    """The bit count is exact, leading zeros are gone."""
    key = SigningKey(private=cast("Any", FixedKey(first + second)), user="x", made_s=0)
    content, _ = without_armour(key.detached(b""))
    expected = b""
    for number in (first, second):
        value = int.from_bytes(number, "big")
        size = (value.bit_length() + 7) // 8
        expected += value.bit_length().to_bytes(2, "big") + value.to_bytes(size, "big")
    assert content.endswith(expected)
