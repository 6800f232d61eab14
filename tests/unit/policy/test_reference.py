"""References to images: Docker's grammar, one normal form, and nothing else."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.policy.reference import parse_reference

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
