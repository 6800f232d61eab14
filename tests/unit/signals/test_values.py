"""What a scanner looks for: bounds, protected files, nothing shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from belljar.errors import PolicyError
from belljar.policy.guarding import Protected
from belljar.signals.values import (
    MAX_VALUES_BYTES,
    KnownValue,
    ScanSpec,
    ValueSource,
    protected_values,
)

KEY = bytes(range(32))
VALUE = KnownValue(
    id="aws/key", text="AKq9-xR7m.Zp2LwT8", source=ValueSource.DECOY, kind="aws_credentials"
)


@pytest.mark.promise("5.7")
def test_no_representation_shows_a_value_or_the_key() -> None:
    """Neither a value's nor a spec's repr holds the value or the key."""
    spec = ScanSpec(values=(VALUE,), key_hex=KEY.hex())
    for shown in (repr(VALUE), repr(spec)):
        assert VALUE.text not in shown
        assert spec.key_hex not in shown


def test_a_value_out_of_bounds_is_refused_without_being_shown() -> None:
    """Too short or too long a value is a ValueError that names its id alone."""
    for text in ("short", "x" * 4097, ""):
        with pytest.raises(ValueError, match="bytes") as refused:
            ScanSpec(values=(replace(VALUE, id="v", text=text),), key_hex=KEY.hex())
        assert not text or text not in str(refused.value)


CSV = b"name,email,note\nAda Lovelace,ada@customer.io,x\nBob,bob.miller@customer.io,y\n"


def texts(item: Protected, content: bytes | None = None) -> list[str]:
    """The values' texts."""
    return [value.text for value in protected_values(item, content)]


def test_what_a_file_or_an_entry_protects() -> None:
    """Only the named columns' values, or each line; none that is too short."""
    item = Protected(id="c", file="c.csv", columns=("name", "email"))
    assert texts(item, CSV) == ["Ada Lovelace", "ada@customer.io", "bob.miller@customer.io"]
    lines = b"first-value-1\nshort\n\nsecond-value-2\n"
    assert texts(Protected(id="c", file="c.txt"), lines) == ["first-value-1", "second-value-2"]
    (value,) = protected_values(Protected(id="codename", value="ORCHID-7731"))
    assert (value.id, value.text) == ("codename", "ORCHID-7731")


def test_a_file_that_can_not_be_used_is_refused() -> None:
    """A missing column, no text, nothing to look for, or too much is a PolicyError naming the
    file."""
    lines = (b"short\n", b"x" * 5000, b"\n" * (MAX_VALUES_BYTES + 1))
    for name, columns, content in (
        ("c.csv", ("iban",), CSV),
        ("c.csv", ("email",), b"\xff\xfe\x00broken"),
        ("c.jsonl", (), b'{"name": "Ada Lovelace"}\n'),
        *(("c.txt", (), each) for each in lines),
    ):
        with pytest.raises(PolicyError) as refused:
            protected_values(Protected(id="c", file=name, columns=columns), content)
        assert refused.value.where.startswith(name)
