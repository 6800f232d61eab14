"""Decoys by kind: the program that reads the real thing reads the decoy, and check digits are
right."""

from __future__ import annotations

import base64
import binascii
import re
import shutil
import subprocess
from collections import OrderedDict
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from hypothesis import given
from hypothesis import strategies as st

from belljar.policy.guarding import DecoyKind, DecoySpec
from belljar.signals.credentials import (
    BASE62,
    KEY_BYTES,
    RandomStream,
    card,
    github_token,
    iban,
)
from belljar.signals.decoys import FILES, Minted, mint

labels = st.text(max_size=8)


def minted(kind: DecoyKind, **more: object) -> Minted:
    """One of a kind."""
    return mint(b"k" * KEY_BYTES, "cell", DecoySpec(id="bait", kind=kind, **more))  # type: ignore[arg-type]


def stream(label: str) -> RandomStream:
    """A stream of its own."""
    return RandomStream(b"k" * KEY_BYTES, label)


@pytest.mark.promise("5.6")
@given(labels)
def test_cards_and_ibans_have_their_check_digits(label: str) -> None:
    """Luhn, and modulo 97; the issuer and the bank are nobody's."""
    number = card(stream(label))
    doubled = [int(d) * (2 if i % 2 == 0 else 1) for i, d in enumerate(number)]
    assert sum(d - 9 if d > 9 else d for d in doubled) % 10 == 0
    assert re.fullmatch(r"9999\d{12}", number)
    account = iban(stream(label))
    assert int(account[4:] + "1314" + account[2:4]) % 97 == 1
    assert re.fullmatch(r"DE\d\d00\d{16}", account)


@pytest.mark.promise("5.6")
@given(labels)
def test_a_token_has_its_checksum(label: str) -> None:
    """CRC-32 in base 62 ends GitHub's."""
    token = github_token(stream(label))
    number = 0
    for digit in token[34:]:
        number = number * 62 + BASE62.index(digit)
    assert number == binascii.crc32(token[4:34].encode())


@pytest.mark.promise("5.6")
def test_an_ssh_key_is_a_key(tmp_path: Path) -> None:
    """It opens, the public file is its own, ssh-keygen agrees, and no line of it that is looked
    for is public."""
    decoy = minted(DecoyKind.SSH_KEY)
    private, public, config, known = (file.content for file in decoy.files)
    key = load_ssh_private_key(private, None)
    assert key.public_key() == load_ssh_public_key(public)
    secret = next(value.text for value in decoy.values if value.id.endswith("private_key"))
    assert secret.encode() in private
    assert base64.b64decode(public.split()[1])[-32:] != b""
    host = next(value.text for value in decoy.values if value.id.endswith("host"))
    assert f"HostName {host}".encode() in config
    assert known.startswith(host.encode())
    if (tool := shutil.which("ssh-keygen")) is None:
        return
    path = tmp_path / "id"
    path.write_bytes(private)
    path.chmod(0o600)
    shown = subprocess.run([tool, "-y", "-f", str(path)], capture_output=True, check=True)
    assert shown.stdout.split()[:2] == public.split()[:2]


def test_a_text_has_a_value_for_each_placeholder() -> None:
    """Nothing else of it is changed."""
    decoy = minted(DecoyKind.TEXT, template="a {secret} b {secret} {c}")
    first, second = (value.text for value in decoy.values)
    assert decoy.files[0].content.decode() == f"a {first} b {second} {{c}}"
    assert first != second


@pytest.mark.promise("5.6")
@pytest.mark.parametrize("kind", FILES)
def test_nothing_marks_a_decoy_as_one(kind: DecoyKind) -> None:
    """No word of this program is in its path or its content."""
    template = "{secret}" if kind is DecoyKind.TEXT else ""
    for file in minted(kind, template=template).files:
        text = (file.path.encode() + file.content).lower()
        assert not any(
            word in text
            for word in (b"decoy", b"belljar", b"honey", b"fake", b"canary", b"example")
        )
    assert FILES[kind][0].startswith("~/")


def test_names_change_no_value_that_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faker's names differ between its versions; a run's values must be derived again years
    later."""
    spec = DecoySpec(id="crm", kind=DecoyKind.SPREADSHEET, count=5)
    first = mint(bytes(KEY_BYTES), "s", spec)
    monkeypatch.setattr("faker.providers.person.en_US.Provider.last_names", OrderedDict(Other=1.0))
    second = mint(bytes(KEY_BYTES), "s", spec)
    assert first.values == second.values
    assert first.files != second.files
