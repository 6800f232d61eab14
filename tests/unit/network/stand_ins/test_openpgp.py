"""The signatures, judged by GnuPG's verifier."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from belljar.network.stand_ins.openpgp import OpenPgpKey

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


def keyring(directory: Path, key: OpenPgpKey) -> Path:
    """The certificate without its armour."""
    path = directory / "key.gpg"
    path.write_bytes(without_armour(key.certificate())[0])
    return path


def verify(gpgv: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the verifier."""
    return subprocess.run([gpgv, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_the_verifier_accepts_what_was_signed_and_nothing_else(tmp_path: Path, gpgv: str) -> None:
    """Several keys (so that numbers with leading zeros come by); a changed byte is a bad
    signature."""
    for number in range(20):
        key = OpenPgpKey.new("Somebody <a@x.example>", 1_700_000_000 + number)
        ring = keyring(tmp_path, key)
        message = tmp_path / "InRelease"
        message.write_text(key.clear_signed(TEXT))
        done = verify(gpgv, "--keyring", ring, message)
        assert done.returncode == 0
        assert key.fingerprint.hex().upper() in done.stderr
        message.write_text(message.read_text().replace("Origin", "0rigin"))
        assert "BAD signature" in verify(gpgv, "--keyring", ring, message).stderr


def test_gnupg_imports_the_certificate(tmp_path: Path) -> None:
    """With its user id and the right to sign: the binding signature holds."""
    gpg = shutil.which("gpg")
    if gpg is None:
        pytest.skip("gpg isn't installed: apt-get install gpg")
    key = OpenPgpKey.new("Somebody <a@x.example>", 1_700_000_000)
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
