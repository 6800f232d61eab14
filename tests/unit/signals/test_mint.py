"""Minting: the same key, cell and decoy give the same values, and nothing else does."""

from __future__ import annotations

import pytest

from belljar.policy.guarding import DecoyKind, DecoySpec
from belljar.signals.credentials import KEY_BYTES
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
    """What depends on nothing else is the same; with another key, cell or id no value is."""
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


@pytest.mark.promise("5.6")
@pytest.mark.parametrize("kind", FILES)
def test_each_value_is_in_a_file(kind: DecoyKind) -> None:
    """What is looked for is what was placed."""
    minted = mint(KEY, "cell-a", spec(kind))
    content = b"\0".join(file.content for file in minted.files)
    assert minted.values
    for value in minted.values:
        assert value.text.encode() in content
        assert value.text not in repr(minted)


@pytest.mark.promise("5.6")
@pytest.mark.parametrize("kind", FILES)
def test_files_are_older_than_their_place_by_no_pattern(kind: DecoyKind) -> None:
    """A moment to months; what one program makes at once has one time, and no step is constant."""
    minted = [mint(KEY, cell, spec(kind)) for cell in ("cell-a", "cell-b")]
    ages = [[file.age_s for file in decoy.files] for decoy in minted]
    assert all(0 < age_s <= (1 + MAX_AGE_DAYS) * DAY_S for age_s in (*ages[0], *ages[1]))
    assert all(len(set(each[:2])) == 1 for each in ages)
    assert len(ages[0]) < 3 or [age - ages[0][0] for age in ages[0]] != [
        age - ages[1][0] for age in ages[1]
    ]


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
