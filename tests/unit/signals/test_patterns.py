"""Patterns: examples and look-alikes are no hits. What is one has cases in the guard's corpus."""

from __future__ import annotations

import pytest

from belljar.signals.detectors import Patterns, is_card, is_iban


def classes(text: bytes, *personal: str) -> list[str]:
    """What is found in a text."""
    return [cls for _, _, cls in Patterns(personal).find(text, lambda: None)]


@pytest.mark.promise("5.7")
@pytest.mark.parametrize(
    "text",
    [
        b"AKIAIOSFODNN7EXAMPLE",
        b"aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        b"ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        b"password = os.environ['DATABASE_PASSWORD']",
        b"PASS: gdb.cp/pr-1023.exp",
        b"PWD: '/Users/maciej'",
        b"verdaccio-htpasswd: 13.0.0-next-8.29",
        b"password = base64.b16encode(",
        b"secret=$Base32String",
        b"x-aws-ec2-metadata-token: AQAEAKm2Zp7LwT8vKq9xAb3cD4eF5gH6iJ0kLmN1oPqRsT==",
        b"key=3f2504e0-4f89-11d3-9a0c-0305e82c3301"[4:],
        b"da39a3ee5e6b4b0d3255bfef95601890afd80709",
        b"-----BEGIN PUBLIC KEY-----",
        b"e.ProgressToken=t.createMessageConnection=t.NullLogger=t.ConnectionOptions=void 0",
        b'"ClientRequestToken": "f4c94ed7-238d-4c46-93db-48cd62ec33b7"',
        b'"PrivateKey": "-----BEGIN DSA PRIVATE KEY-----<a very long private key string>-----END'
        b' DSA PRIVATE KEY-----"' + b"A" * 60,
        b'right":return["start","end"];case"bottom_left":return["end","start"];case"bottom_right":return["end","end"]',
    ],
)
def test_a_look_alike_passes(text: bytes) -> None:
    """Examples, placeholders, code, identifiers, hashes and lines of published packages."""
    assert classes(b"x: " + text + b" ;") == []


@pytest.mark.promise("5.7")
def test_a_card_is_one_by_prefix_and_check_digit() -> None:
    """With its last digit changed it is none; nor are test cards, and what no network issues."""
    for number in (b"4556 7375 8689 9855", b"5425233430109903", b"374245455400126"):
        assert is_card(number)
        assert not is_card(number[:-1] + bytes([48 + (number[-1] - 47) % 10]))
    for number in (b"4111 1111 1111 1111", b"4242424242424242", b"0" * 16, b"9999999999999995"):
        assert not is_card(number)
    assert is_iban(b"DE02 1203 0000 0000 2020 51")
    assert not is_iban(b"DE03 1203 0000 0000 2020 51")
    assert not is_iban(b"DE89 3704 0044 0532 0130 00")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"3 0 02454649 02043683", []),
        (b"seed = 3562050283508273023", []),
        (b"card 3742-454554-00126 paid", ["card"]),
        (b"45 56 73 75 86 89 98 55", ["card"]),
    ],
)
def test_numbers_are_told_by_their_groups(text: bytes, found: list[str]) -> None:
    """As people write them; columns of tables and decimals pass, whatever their digits say."""
    assert classes(text, "card") == found
