"""Host names, ports, methods, and references to images: one form, and no way round it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.policy.fields import METADATA_NAMES, covers, read_host, read_pattern, read_port
from belljar.policy.reference import parse_reference

FORM = re.compile(r"(\*\.)?[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("Shop.Example", "shop.example"),
        ("*.Shop.example", "*.shop.example"),
        ("XN--bcher-kva.example", "xn--bcher-kva.example"),
        *((name, name) for name in ("my_db", f"{'a' * 63}.example", "0xff.example")),
    ],
)
def test_names_have_one_form(written: str, kept: str) -> None:
    """Lower case; reading it again changes nothing."""
    assert read_pattern(written) == read_pattern(kept) == kept


# By what is told: an address in any spelling that a resolver would take for one is no name, and the
# resolver's port is nobody else's.
NO_NAMES: dict[str, list[object]] = {
    "not a valid host name": ["shop.example.", "", "-a.example", f"{'a' * 64}.example", "a\nb"],
    "valid host name": ["bücher.example", "shop。example", "１０.1.2.３", "a\u202eb.example"],
    "host name": [".".join(["a" * 50] * 6), "https://a.example", "a.example:80", "[::1]"],
    "is an address": ["10.1.2.3", "0x7f.1", "*.10.1.2.3"],
    "the cell itself": ["a.LOCALHOST"],
    "first label": ["*.*.example", "a.*.example", "*a.example"],
    "expected ": [5],
}
NO_PORTS: dict[str, list[object]] = {
    "1 to 65535": [0, 65536],
    "not a port": [True, 80.0, "８０/tcp", "999999999999/tcp"],
    "8443/tls": ["80", "443/tsl"],
    "reserved for the resolver": [53, "53/tcp"],
}


@pytest.mark.parametrize(
    ("read", "wrong", "told"),
    [
        (read, wrong, told)
        for read, rows in ((read_pattern, NO_NAMES), (read_port, NO_PORTS))
        for told, words in rows.items()
        for wrong in words
    ],
)
def test_what_is_no_name_or_port_is_refused(
    read: Callable[[object], object], wrong: object, told: str
) -> None:
    """With what is allowed."""
    with pytest.raises(ValueError, match=re.escape(told)):
        read(wrong)


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
    with pytest.raises(ValueError, match="not a valid host name"):
        read_host("*.example")
    assert [read_host(name) for name in METADATA_NAMES] == list(METADATA_NAMES)


DIGEST = "sha256:" + "0a" * 32
HUB = "docker.io/library/"


@pytest.mark.parametrize(
    ("text", "canonical", "familiar"),
    [
        *((text, f"{HUB}debian:latest", "debian") for text in ("debian", "debian:latest")),
        ("docker.io/library/debian", f"{HUB}debian:latest", "debian"),
        ("index.docker.io/debian:12", f"{HUB}debian:12", "debian:12"),
        ("ghcr.io/a/b/c:V1.2", "ghcr.io/a/b/c:V1.2", "ghcr.io/a/b/c:V1.2"),
        *((f"{host}/x", f"{host}/x:latest", f"{host}/x") for host in ("localhost", "[::1]:5000")),
        ("localhost:5000/x", "localhost:5000/x:latest", "localhost:5000/x"),
        ("host:5000", f"{HUB}host:5000", "host:5000"),
        *(
            (f"python{tag}@{DIGEST}", f"{HUB}python{tag}@{DIGEST}", f"python{tag}@{DIGEST}")
            for tag in ("", ":3.12", ":latest")
        ),
    ],
)
def test_references_are_normalised_as_docker_does(text: str, canonical: str, familiar: str) -> None:
    """The default registry, `library/` and `latest` are implied, and left out again for people."""
    reference = parse_reference(text)
    assert (reference.canonical, reference.familiar) == (canonical, familiar)
    assert parse_reference(canonical) == parse_reference(familiar) == reference


@given(
    st.one_of(st.text(max_size=80), st.from_regex(r"[A-Za-z0-9./:@_\[\]-]{0,60}", fullmatch=True))
)
def test_any_text_is_a_reference_or_refused(text: str) -> None:
    """What is taken has a normal form, and no character that a path or shell acts on."""
    try:
        reference = parse_reference(text)
    except ValueError:
        return
    assert parse_reference(reference.canonical) == reference
    assert ".." not in reference.canonical
    assert re.fullmatch(r"[A-Za-z0-9._:/@\[\]-]+", reference.canonical)


WRONG = {
    "registry": (*("", "-rm", "a b", "a/../b", "a:" + "t" * 129, "debian\n", "docker://debian"),),
    "lower case": ("Debian", "a@sha256:" + "0A" * 32),
    "64 hexadecimal": ("a@sha512:" + "0a" * 64, "a@sha256:12", "sha256:12"),
    "id": (DIGEST, "0a" * 32),
    "255": ("a" * 256,),
}


@pytest.mark.parametrize("said", WRONG)
def test_what_is_no_reference_is_refused_with_its_reason(said: str) -> None:
    """Ids, other digests, capitals, empty parts and what only looks like a name."""
    for text in WRONG[said]:
        with pytest.raises(ValueError, match=said):
            parse_reference(text)
