"""Where packages come from: derived from the host's sources, never invented."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.errors import HostError
from belljar.image.build import AptSource, debian_sources, host_sources

TARGETS = """\
http://vendor.invalid/deb/ stable contrib
http://vendor.invalid/apt/ cloud main
http://mirror.invalid/debian/ bookworm main
http://mirror.invalid/debian/ bookworm main
http://mirror.invalid/debian/ bookworm contrib
http://security.invalid/debian-security/ bookworm-security main
"""


def test_debian_is_found_among_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As apt lists them; a vendor's repository is not Debian, and none is invented."""
    program = tmp_path / "apt-get"
    program.write_text(f"#!/bin/sh\ncat <<'EOF'\n{TARGETS}EOF\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    known = host_sources()
    assert len(known) == 3
    assert debian_sources(known, "bookworm") == [
        AptSource("http://mirror.invalid/debian/", ("bookworm", "bookworm-updates")),
        AptSource("http://security.invalid/debian-security/", ("bookworm-security",)),
    ]
    with pytest.raises(HostError, match="no Debian mirror"):
        debian_sources(known[:1], "bookworm")
