"""Decoys by kind: the program that reads the real thing reads the decoy, and check digits are
right."""

from __future__ import annotations

import base64
import binascii
import configparser
import csv
import io
import re
import shutil
import sqlite3
import subprocess
from collections import OrderedDict
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from belljar.policy.guarding import DecoyKind, DecoySpec
from belljar.signals.credentials import (
    BASE62,
    KEY_BYTES,
    RandomStream,
    anthropic_key,
    card,
    github_token,
    iban,
    npm_token,
    openai_key,
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
def test_tokens_have_their_checksums_and_shapes(label: str) -> None:
    """CRC-32 in base 62 ends GitHub's and npm's; others have a fixed shape."""
    for token in (github_token(stream(label)), npm_token(stream(label))):
        body, check = token[4:34], token[34:]
        number = 0
        for digit in check:
            number = number * 62 + BASE62.index(digit)
        assert number == binascii.crc32(body.encode())
    assert re.fullmatch(r"sk-proj-[\w-]{74}T3BlbkFJ[\w-]{74}", openai_key(stream(label)))
    assert re.fullmatch(r"sk-ant-api03-[\w-]{93}AA", anthropic_key(stream(label)))


def test_aws_credentials_are_ini() -> None:
    """As the AWS tools read them."""
    parser = configparser.RawConfigParser()
    parser.read_string(minted(DecoyKind.AWS_CREDENTIALS).files[0].content.decode())
    assert re.fullmatch("AKIA[A-Z2-7]{16}", parser["default"]["aws_access_key_id"])
    assert re.fullmatch("[A-Za-z0-9+/]{40}", parser["default"]["aws_secret_access_key"])


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


def test_a_kubeconfig_is_yaml() -> None:
    """Its context leads to a cluster and a user."""
    config = YAML(typ="safe").load(minted(DecoyKind.KUBECONFIG).files[0].content)
    assert config["contexts"][0]["context"] == {"cluster": "production", "user": "admin"}
    assert config["users"][0]["user"]["token"]


@pytest.mark.promise("5.6")
@pytest.mark.parametrize(
    ("kind", "table"),
    [(DecoyKind.DATABASE, "customers"), (DecoyKind.BROWSER_COOKIES, "moz_cookies")],
)
def test_databases_are_sqlite(kind: DecoyKind, table: str, tmp_path: Path) -> None:
    """SQLite finds nothing wrong, and the rows that were asked for."""
    path = tmp_path / "db"
    path.write_bytes(minted(kind, count=3).files[0].content)
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (3,)  # noqa: S608
    finally:
        connection.close()


def test_cookies_have_the_schema_of_firefox(tmp_path: Path) -> None:
    """Its number of the schema, and what it asks for of a cookie."""
    path = tmp_path / "cookies.sqlite"
    path.write_bytes(minted(DecoyKind.BROWSER_COOKIES).files[0].content)
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA user_version").fetchone() == (12,)
        columns = {row[1] for row in connection.execute("PRAGMA table_info(moz_cookies)")}
        assert {"inBrowserElement", "sameSite", "rawSameSite", "schemeMap"} <= columns
    finally:
        connection.close()


def test_a_spreadsheet_is_csv() -> None:
    """With a header and as many rows as were asked for."""
    rows = list(
        csv.DictReader(
            io.StringIO(minted(DecoyKind.SPREADSHEET, count=7).files[0].content.decode())
        )
    )
    assert len(rows) == 7
    assert len({row["iban"] for row in rows}) == 7


def test_a_pypi_token_is_a_macaroon() -> None:
    """Version 2, of an internal index."""
    token = next(iter(minted(DecoyKind.PYPI_TOKEN).values)).text.removeprefix("pypi-")
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    assert raw[:25] == b"\x02\x01\x16packages.corp.internal"


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
    spec = DecoySpec(id="crm", kind=DecoyKind.DATABASE, count=5)
    first = mint(bytes(KEY_BYTES), "s", spec)
    monkeypatch.setattr("faker.providers.person.en_US.Provider.last_names", OrderedDict(Other=1.0))
    second = mint(bytes(KEY_BYTES), "s", spec)
    assert first.values == second.values
    assert first.files != second.files
