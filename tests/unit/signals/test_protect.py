"""Protected files: what becomes a known value, and what is refused."""

from __future__ import annotations

import pytest

from belljar.errors import PolicyError
from belljar.policy.guarding import Protected
from belljar.signals.values import MAX_FILE_BYTES, protected_values

CSV = b"name,email,note\nAda Lovelace,ada@customer.io,x\nBob,bob.miller@customer.io,y\n"


def texts(item: Protected, content: bytes | None = None) -> list[str]:
    """The values' texts."""
    return [value.text for value in protected_values(item, content)]


def test_columns_of_a_table() -> None:
    """Only the named columns' values, without those that are too short."""
    item = Protected(id="c", file="c.csv", columns=("name", "email"))
    assert texts(item, CSV) == ["Ada Lovelace", "ada@customer.io", "bob.miller@customer.io"]


def test_lines() -> None:
    """Each is a value."""
    assert texts(Protected(id="c", file="c.txt"), b"first-value-1\nshort\n\nsecond-value-2\n") == [
        "first-value-1",
        "second-value-2",
    ]


def test_one_value() -> None:
    """The entry's own value has the entry's id."""
    (value,) = protected_values(Protected(id="codename", value="ORCHID-7731"))
    assert (value.id, value.text) == ("codename", "ORCHID-7731")


@pytest.mark.parametrize(
    ("name", "columns", "content"),
    [
        ("c.csv", ("iban",), CSV),
        ("c.csv", ("email",), b"\xff\xfe\x00broken"),
        ("c.txt", (), b"short\n"),
        ("c.txt", (), b"x" * 5000),
        ("c.txt", (), b"\n" * (MAX_FILE_BYTES + 1)),
    ],
    ids=["column", "binary", "short", "long", "size"],
)
def test_a_file_that_can_not_be_used_is_refused(
    name: str, columns: tuple[str, ...], content: bytes
) -> None:
    """A missing column, no text, nothing to look for, or too much is a PolicyError naming the
    file."""
    with pytest.raises(PolicyError) as refused:
        protected_values(Protected(id="c", file=name, columns=columns), content)
    assert refused.value.where.startswith(name)
