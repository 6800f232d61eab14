"""Personal data: check digits hold, documented numbers pass."""

from __future__ import annotations

import pytest

from belljar.signals.detectors import is_card, is_iban
from belljar.signals.patterns import Patterns


@pytest.mark.promise("5.7")
@pytest.mark.parametrize(
    "number", [b"4556 7375 8689 9855", b"5425233430109903", b"374245455400126"]
)
def test_a_card_is_one_by_prefix_and_check_digit(number: bytes) -> None:
    """A valid number is a card; with its last digit changed it is none."""
    assert is_card(number)
    assert not is_card(number[:-1] + bytes([48 + (number[-1] - 47) % 10]))


@pytest.mark.promise("5.7")
@pytest.mark.parametrize(
    "number",
    [b"4111 1111 1111 1111", b"4242424242424242", b"0000000000000000", b"9999999999999995"],
)
def test_documented_and_impossible_cards_pass(number: bytes) -> None:
    """Test cards, and what no network issues, are no hits."""
    assert not is_card(number)


def test_an_account_number_is_one_by_length_and_check_digits() -> None:
    """Spaces don't matter, a wrong digit does, and the documents' examples pass."""
    assert is_iban(b"DE02 1203 0000 0000 2020 51")
    assert not is_iban(b"DE03 1203 0000 0000 2020 51")
    assert not is_iban(b"DE89 3704 0044 0532 0130 00")


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        ("card", "3 0 02454649 02043683"),
        ("card", "seed = 3562050283508273023"),
    ],
)
def test_numbers_of_tables_and_code_pass(cls: str, text: str) -> None:
    """Whatever their check digits say: columns and decimals."""
    assert list(Patterns((cls,)).find(text.encode())) == []


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        ("card", "card 3742-454554-00126 paid"),
        ("card", "45 56 73 75 86 89 98 55"),
    ],
)
def test_numbers_as_people_write_them_are_found(cls: str, text: str) -> None:
    """In groups."""
    assert {found for _, _, found in Patterns((cls,)).find(text.encode())} == {cls}
