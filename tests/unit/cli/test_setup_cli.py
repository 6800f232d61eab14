"""`belljar setup`: what is planned for every kind of host, and what is never begun."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from belljar.cli import setup
from belljar.cli.main import run
from belljar.cli.setup import BACKPORTS_FILE, install_line, needs
from belljar.errors import HostError
from belljar.image.build import AptSource, debian_sources, host_sources

MAIN = AptSource("http://mirror.invalid/a%20b/debian", ("bookworm", "bookworm-updates"))
WANTED = needs("x86_64")


def test_the_line_for_debian_12_has_backports_and_each_package_once() -> None:
    """The suite in a file of its own, the lists, what must be newer from it, then the others."""
    suite, rights, lists, newer, plain = install_line(WANTED, "bookworm", [MAIN]).split(" && ")
    assert suite.endswith(f"> {BACKPORTS_FILE}")
    assert (rights, lists) == (f"chmod 644 {BACKPORTS_FILE}", "apt-get -q -y update")
    assert newer.endswith("-t bookworm-backports qemu-system-x86 runsc")
    assert plain == (
        "apt-get -q -y install --no-install-recommends"
        " buildah mmdebstrap nftables runc skopeo squashfs-tools uidmap"
    )
    wrote = subprocess.run(["sh", "-c", suite.partition(" > ")[0]], check=True, capture_output=True)
    backports = replace(MAIN, suites=("bookworm-backports",))
    assert wrote.stdout.decode() == backports.deb822()
    known = [MAIN, backports]
    assert install_line(WANTED, "bookworm", known) == " && ".join((lists, newer, plain))
    trixie = install_line(WANTED, "trixie", [MAIN]).split(" && ")
    assert ["-t" in each.split() for each in trixie] == [False, False]


def test_a_failing_tool_names_the_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 3, the tool's last words and the log's path; later steps are not begun."""
    release = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
    sources = [replace(MAIN, suites=("bookworm", "bookworm-backports"))]
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path / "store"))
    monkeypatch.setattr(setup, "host_sources", lambda: sources)
    monkeypatch.setattr(setup, "tool_facts", lambda wanted, _: [Mock(ok=False)] * len(wanted))
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: release)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    script = tmp_path / "apt-get"
    script.write_text('#!/bin/sh\necho x >> "$0.calls"\necho the mirror is gone >&2\nexit 100\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert run(["setup", "--yes"]) == 3
    error = capsys.readouterr().err
    assert "the mirror is gone" in error
    assert "setup.log" in error
    assert (tmp_path / "apt-get.calls").read_text() == "x\n"
    assert "the mirror is gone" in (tmp_path / "store/setup.log").read_text()


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
