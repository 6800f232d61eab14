"""Where packages come from: derived from the host's sources, never invented."""

from __future__ import annotations

import pytest

from belljar.errors import HostError
from belljar.image.apt import AptSource, debian_sources, parse_sources

DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://mirror.invalid/debian
# another
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/k.gpg

Enabled: no
Types: deb
URIs: http://off.invalid/debian
Suites: bookworm
Components: main

Types: deb
URIs: http://security.invalid/debian-security
Suites: bookworm-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 -----END PGP PUBLIC KEY BLOCK-----
"""


def test_deb822_is_read_as_apt_reads_it() -> None:
    """Comments, disabled stanzas and inline keys are understood."""
    main, security = parse_sources(DEB822, deb822=True)
    assert main == AptSource(
        uri="http://mirror.invalid/debian",
        suites=("bookworm", "bookworm-updates"),
        components=("main", "contrib"),
        signed_by="/usr/share/keyrings/k.gpg",
    )
    assert (security.suites, security.signed_by) == (("bookworm-security",), "")


def test_one_line_sources_are_read() -> None:
    """Options, comments and source-package lines are told apart."""
    text = (
        "# deb http://no.invalid x main\ndeb [arch=amd64 signed-by=/k.gpg] http://m.invalid/debian"
        " bookworm main # c\ndeb-src http://m.invalid/debian bookworm main\n"
    )
    assert parse_sources(text, deb822=False) == [
        AptSource(uri="http://m.invalid/debian", suites=("bookworm",), signed_by="/k.gpg")
    ]


def test_debian_is_found_among_others() -> None:
    """A vendor's repository is not taken for Debian; security and keyring are carried over."""
    vendor = AptSource(uri="http://vendor.invalid/deb", suites=("stable",), components=("main",))
    found = debian_sources([vendor, *parse_sources(DEB822, deb822=True)], "bookworm")
    assert [source.uri for source in found] == [
        "http://mirror.invalid/debian",
        "http://security.invalid/debian-security",
    ]
    assert found[0].signed_by == "/usr/share/keyrings/k.gpg"


def test_no_mirror_is_an_error_that_says_how_to_name_one() -> None:
    """Belljar has no mirror of its own."""
    with pytest.raises(HostError, match="--mirror"):
        debian_sources([], "bookworm")
    assert (
        debian_sources([], "bookworm", mirror="http://m.invalid/debian")[0].uri
        == "http://m.invalid/debian"
    )
