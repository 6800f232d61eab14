"""Host names, ports and methods: one form, and no way round it."""

from __future__ import annotations

import ipaddress
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.policy.hosts import (
    METADATA_NAMES,
    covers,
    read_host,
    read_pattern,
    read_port,
)

FORM = re.compile(r"(\*\.)?[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("Shop.Example", "shop.example"),
        ("db", "db"),
        ("my_service", "my_service"),
        ("*.Shop.example", "*.shop.example"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
        ("*.bücher.example", "*.xn--bcher-kva.example"),
        ("faß.example", "xn--fa-hia.example"),
        ("shop。example", "shop.example"),
        ("ｓｈｏｐ.example", "shop.example"),
        (f"{'a' * 63}.example", f"{'a' * 63}.example"),
        ("1.a", "1.a"),
        ("0xff.example", "0xff.example"),
    ],
)
def test_names_have_one_form(written: str, kept: str) -> None:
    """Lower case, A-labels by UTS 46 and IDNA 2008; reading it again changes nothing."""
    assert read_pattern(written) == kept
    assert read_pattern(kept) == kept


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("shop.example.", "ends with a dot"),
        ("", "host name: "),
        (".", "ends with a dot"),
        ("a..b", "host name: "),
        ("-a.example", "host name: "),
        ("a-.example", "host name: "),
        (f"{'a' * 64}.example", "host name: "),
        (".".join(["a" * 50] * 6), "host name: "),
        ("a b", "host name: "),
        ("a\nb", "host name: "),
        ("https://a.example", "without scheme"),
        ("a.example:80", "without scheme"),
        ("::1", "without scheme"),
        ("[::1]", "without scheme"),
        ("user@a.example", "without scheme"),
        ("10.1.2.3", "is an address"),
        ("1", "is an address"),
        ("0x7f.1", "is an address"),
        ("127.0x1", "is an address"),
        ("１０.1.2.３", "is an address"),
        ("localhost", "the cell itself"),
        ("a.LOCALHOST", "the cell itself"),
        ("*", "default: simulate"),
        ("*.*.example", "as the first label"),
        ("a.*.example", "as the first label"),
        ("a*.example", "as the first label"),
        ("*a.example", "as the first label"),
        ("*.", "host name: "),
        ("*.10.1.2.3", "is an address"),
        ("xn--a.example", "internationalised"),
        ("a\u202eb.example", "internationalised"),
        ("☃️.example", "internationalised"),
        (5, "expected "),
        (None, "expected "),
    ],
)
def test_what_is_no_name_is_refused(written: object, told: str) -> None:
    """With what is allowed; an address in any spelling that a resolver would take for one is
    none."""
    with pytest.raises(ValueError, match=re.escape(told)):
        read_pattern(written)


def test_an_exact_name_has_no_wildcard() -> None:
    """Upstreams and target cells have exact names only."""
    with pytest.raises(ValueError, match="not an exact name"):
        read_host("*.example")


@given(st.text(max_size=80))
def test_whatever_is_written_is_a_name_in_its_form_or_a_refusal(text: str) -> None:
    """Nothing else is raised, and what is kept can be kept again and is no address."""
    try:
        kept = read_pattern(text)
    except ValueError:
        return
    assert FORM.fullmatch(kept)
    assert len(kept) <= 255
    assert read_pattern(kept) == kept
    with pytest.raises(ValueError, match="does not appear"):
        ipaddress.ip_address(kept)


def test_a_wildcard_stands_for_exactly_one_more_label() -> None:
    """Neither for the name itself nor for two labels."""
    assert covers("*.a.example", "x.a.example")
    assert covers("a.example", "a.example")
    for name in ("a.example", "x.y.a.example", "xa.example", "x.b.example"):
        assert not covers("*.a.example", name)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (0, "1 to 65535"),
        (65536, "1 to 65535"),
        (True, "not a port"),
        (80.0, "not a port"),
        ("80", "8443/tls"),
        ("80/", "not one of"),
        ("443/tsl", "did you mean `tls`?"),
        ("-1/tcp", "not a port"),
        ("８０/tcp", "not a port"),
        ("999999999999/tcp", "not a port"),
        (53, "reserved for the resolver"),
        ("53/tcp", "reserved for the resolver"),
        (None, "not a port"),
    ],
)
def test_what_is_no_port_is_refused(written: object, told: str) -> None:
    """With what is allowed; the resolver's is nobody else's."""
    with pytest.raises(ValueError, match=re.escape(told)):
        read_port(written)


def test_clouds_names_are_in_their_form() -> None:
    """Else none of them would ever be found."""
    assert [read_host(name) for name in METADATA_NAMES] == list(METADATA_NAMES)
