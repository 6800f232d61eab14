"""Decoys by kind: the program that reads the real thing reads the decoy, and check digits are
right."""

from __future__ import annotations

import binascii
import re
from collections import OrderedDict

import pytest
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
from belljar.signals.decoy_services import DAY_S
from belljar.signals.decoys import (
    FILES,
    MAX_AGE_DAYS,
    Minted,
    Origin,
    digest,
    digests,
    mint,
    origins,
)

KEY, OTHER_KEY = b"k" * KEY_BYTES, b"o" * KEY_BYTES
labels = st.text(max_size=8)


def stream(label: str) -> RandomStream:
    """A stream of its own."""
    return RandomStream(KEY, label)


@pytest.mark.promise("5.6")
@given(labels)
def test_cards_accounts_and_tokens_have_their_check_digits(label: str) -> None:
    """Luhn, modulo 97, and CRC-32 in base 62 at the end of GitHub's; the issuer and the bank are
    nobody's."""
    number = card(stream(label))
    doubled = [int(d) * (2 if i % 2 == 0 else 1) for i, d in enumerate(number)]
    assert sum(d - 9 if d > 9 else d for d in doubled) % 10 == 0
    assert re.fullmatch(r"9999\d{12}", number)
    account = iban(stream(label))
    assert int(account[4:] + "1314" + account[2:4]) % 97 == 1
    assert re.fullmatch(r"DE\d\d00\d{16}", account)
    token = github_token(stream(label))
    crc = 0
    for digit in token[34:]:
        crc = crc * 62 + BASE62.index(digit)
    assert crc == binascii.crc32(token[4:34].encode())


def test_names_change_no_value_that_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faker's names differ between its versions; a run's values must be derived again years
    later."""
    spec = DecoySpec(id="crm", kind=DecoyKind.SPREADSHEET, count=5)
    first = mint(bytes(KEY_BYTES), "s", spec)
    monkeypatch.setattr("faker.providers.person.en_US.Provider.last_names", OrderedDict(Other=1.0))
    second = mint(bytes(KEY_BYTES), "s", spec)
    assert first.values == second.values
    assert first.files != second.files


def spec(kind: DecoyKind, name: str = "bait") -> DecoySpec:
    """One of each kind, with three records."""
    return DecoySpec(
        id=name,
        kind=kind,
        count=3,
        template="the code is {secret}" if kind is DecoyKind.TEXT else "",
    )


def texts(minted: Minted) -> set[str]:
    """Its values."""
    return {value.text for value in minted.values}


@pytest.mark.promise("5.6")
@pytest.mark.parametrize("kind", FILES)
def test_values_belong_to_one_key_cell_and_decoy(kind: DecoyKind) -> None:
    """What depends on nothing else is the same; with another key, cell or id no value is. Each is
    in a file, and in no repr."""
    one = mint(KEY, "cell-a", spec(kind))
    assert one == mint(KEY, "cell-a", spec(kind))
    assert (
        one.values == mint(KEY, "cell-a", spec(kind), home="/home/x").values
        or kind is DecoyKind.SSH_KEY
    )
    others = (
        mint(OTHER_KEY, "cell-a", spec(kind)),
        mint(KEY, "cell-b", spec(kind)),
        mint(KEY, "cell-a", spec(kind, "other")),
    )
    for other in others:
        assert not texts(one) & texts(other)
    content = b"\0".join(file.content for file in one.files)
    assert one.values
    assert all(value.text.encode() in content for value in one.values)
    assert not any(value.text in repr(one) for value in one.values)


MARKS = (b"decoy", b"belljar", b"honey", b"fake", b"canary", b"example")


@pytest.mark.promise("5.6")
@pytest.mark.parametrize("kind", FILES)
def test_nothing_marks_a_decoy_as_one(kind: DecoyKind) -> None:
    """No word of this program is in its path or its content. Files are older than their place, a
    moment to months; what one program makes at once has one time, and no step is constant."""
    minted = [mint(KEY, cell, spec(kind)) for cell in ("cell-a", "cell-b")]
    for file in minted[0].files:
        text = (file.path.encode() + file.content).lower()
        assert not any(word in text for word in MARKS)
    assert FILES[kind][0].startswith("~/")
    ages = [[file.age_s for file in decoy.files] for decoy in minted]
    assert all(0 < age_s <= (1 + MAX_AGE_DAYS) * DAY_S for age_s in (*ages[0], *ages[1]))
    assert all(len(set(each[:2])) == 1 for each in ages)
    steps = [[age - each[0] for age in each] for each in ages]
    assert len(ages[0]) < 3 or steps[0] != steps[1]


def test_a_text_has_a_value_for_each_placeholder() -> None:
    """Nothing else of it is changed."""
    text = DecoySpec(id="bait", kind=DecoyKind.TEXT, template="a {secret} b {secret} {c}")
    decoy = mint(KEY, "cell", text)
    first, second = (value.text for value in decoy.values)
    assert decoy.files[0].content.decode() == f"a {first} b {second} {{c}}"
    assert first != second


@pytest.mark.promise("5.6")
def test_a_value_is_traced_to_its_cell_and_decoy() -> None:
    """With the key and the digests on record; another key or value leads nowhere."""
    kinds = (DecoyKind.AWS_CREDENTIALS, DecoyKind.SPREADSHEET)
    made = [mint(KEY, cell, spec(kind, kind.value)) for cell in ("a", "b") for kind in kinds]
    known = origins((decoy.cell_id, decoy.id, digests(KEY, decoy)) for decoy in made)
    for decoy in made:
        for value in decoy.values:
            assert known[digest(KEY, value.text)] == Origin(
                cell_id=decoy.cell_id, decoy=decoy.id, value=value.id
            )
            assert digest(OTHER_KEY, value.text) not in known
    assert digest(KEY, "nobody's value") not in known
