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


def test_sources_are_read_as_apt_reads_them() -> None:
    """Comments, disabled stanzas, options, inline keys and source packages are told apart."""
    main, security = parse_sources(DEB822, deb822=True)
    assert main == AptSource(
        uri="http://mirror.invalid/debian",
        suites=("bookworm", "bookworm-updates"),
        components=("main", "contrib"),
        signed_by="/usr/share/keyrings/k.gpg",
    )
    assert (security.suites, security.signed_by) == (("bookworm-security",), "")
    text = (
        "# deb http://no.invalid x main\ndeb [arch=amd64 signed-by=/k.gpg] http://m.invalid/debian"
        " bookworm main # c\ndeb-src http://m.invalid/debian bookworm main\n"
    )
    assert parse_sources(text, deb822=False) == [
        AptSource(uri="http://m.invalid/debian", suites=("bookworm",), signed_by="/k.gpg")
    ]


def test_debian_is_found_among_others() -> None:
    """A vendor's repository is not Debian; without a mirror, the error says how to name one."""
    vendor = AptSource(uri="http://vendor.invalid/deb", suites=("stable",), components=("main",))
    found = debian_sources([vendor, *parse_sources(DEB822, deb822=True)], "bookworm")
    hosts = ["mirror.invalid/debian", "security.invalid/debian-security"]
    assert [source.uri.removeprefix("http://") for source in found] == hosts
    assert found[0].signed_by == "/usr/share/keyrings/k.gpg"
    with pytest.raises(HostError, match="--mirror"):
        debian_sources([], "bookworm")
    mirror = "http://m.invalid/debian"
    assert debian_sources([], "bookworm", mirror=mirror)[0].uri == mirror
