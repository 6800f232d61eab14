"""Debian package sources of this host, and apt in a private directory.

Belljar names no mirror of its own. apt needs no root here, and checks the signatures.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from itertools import islice
from pathlib import Path
from typing import Final

from belljar.errors import HostError
from belljar.image.tools import run_tool, tool

DEBIAN_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# Other distributions have a `main`, too, which is no Debian.
_CODENAMES: Final = frozenset(
    {"bookworm", "trixie", "forky", "duke", "sid", "testing", "stable", "oldstable", "unstable"}
)
_TARGET: Final = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
_HOST_OPTIONS: Final = re.compile(
    r'(Acquire::(?:https?::|ftp::|Check-|Retries|ForceIPv)\S*) "(.*)";'
)


@dataclass(frozen=True, slots=True)
class AptSource:
    uri: str
    suites: tuple[str, ...]

    def deb822(self, *, has_keyring: bool = True) -> str:
        """Return a stanza, signed by Debian's keys if it `has_keyring`."""
        stanza = (
            f"Types: deb\nURIs: {self.uri}\nSuites: {' '.join(self.suites)}\nComponents: main\n"
        )
        is_named = has_keyring and DEBIAN_KEYRING.exists()
        return f"{stanza}Signed-By: {DEBIAN_KEYRING}\n" if is_named else stanza


def host_sources() -> list[AptSource]:
    if shutil.which("apt-get") is None:
        return []
    argv = [tool("apt-get"), "indextargets", "--format", _TARGET, "Created-By: Packages"]
    listed = run_tool(argv, timeout_s=60).decode("utf-8", "replace").splitlines()
    found = (line.split() for line in dict.fromkeys(listed))
    return [AptSource(of[0], (of[1],)) for of in found if len(of) == 3 and of[2] == "main"]


def debian_sources(known: Sequence[AptSource], codename: str) -> list[AptSource]:
    """Return the main, updates and security suites of Debian `codename`, as the host has them.

    Raises `HostError` when no mirror is known.
    """
    # `main` of a suite that Debian has, best from a tree called `debian`.
    plain = [source for source in known if not _CODENAMES.isdisjoint(source.suites)]
    main = next((s for s in plain if s.uri.rstrip("/").endswith("debian")), next(iter(plain), None))
    if main is None:
        hint = "add one to apt's sources, and install debian-archive-keyring"
        raise HostError("apt's sources name no Debian mirror", where="/etc/apt", hint=hint)
    is_security = (s for s in known if any(suite.endswith("-security") for suite in s.suites))
    return [
        AptSource(main.uri, (codename, f"{codename}-updates")),
        *(AptSource(each.uri, (f"{codename}-security",)) for each in islice(is_security, 1)),
    ]


def kernel_sources(known: Sequence[AptSource], codename: str) -> list[AptSource]:
    """Return Debian 13's own suite, or Debian 12's backports."""
    main = debian_sources(known, codename)[0]
    suite = codename if codename in {"trixie", "forky", "sid"} else "bookworm-backports"
    return [AptSource(main.uri, (suite,))]


class PrivateApt:
    def __init__(self, directory: Path, sources: Sequence[AptSource]) -> None:
        parts = directory / "sources.list.d"
        self._lists = directory / "lists"
        for path in (
            parts,
            self._lists / "partial",
            directory / "cache/archives/partial",
            directory / "state",
        ):
            path.mkdir(parents=True)
        parts.joinpath("these.sources").write_text("\n".join(source.deb822() for source in sources))
        options = {
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": str(parts),
            "Dir::State": str(directory / "state"),
            # Nothing is installed: all that a package needs is named.
            "Dir::State::status": "/dev/null",
            "Dir::State::lists": str(self._lists),
            "Dir::Cache": str(directory / "cache"),
            "Acquire::Languages": "none",
            # For root, apt would fetch as `_apt`, to which this directory is closed.
            "APT::Sandbox::User": "root",
            # A list that can't be fetched is an error, not a warning.
            "APT::Update::Error-Mode": "any",
        }
        self._options = [
            word for name, value in options.items() for word in ("-o", f"{name}={value}")
        ]

    def update(self) -> None:
        run_tool([tool("apt-get"), *self._options, "-q", "update"], timeout_s=600)

    def show(self, package: str) -> dict[str, str]:
        """Return the fields of a package's newest version."""
        argv = [tool("apt-cache"), *self._options, "show", "--no-all-versions", package]
        lines = run_tool(argv, timeout_s=60).decode("utf-8", "replace").splitlines()
        # Of the only stanza; a field's further lines are indented, and none of those is asked for.
        return dict(line.partition(": ")[::2] for line in lines if line[:1].isalpha())

    def download(self, package: str, into: Path) -> Path:
        run_tool(
            [tool("apt-get"), *self._options, "-q", "download", package], timeout_s=1800, cwd=into
        )
        if len(found := [*into.glob("*.deb")]) != 1:
            raise HostError(f"apt fetched {len(found)} files for {package}", where="apt-get")
        return found[0]

    def download_closure(self, packages: Sequence[str], into: Path, *, suite: str = "") -> None:
        """Fetch packages with all dependencies of an empty host."""
        (into / "partial").mkdir(parents=True, exist_ok=True)
        chosen = ["-t", suite] if suite else []
        options = ["-q", "-y", "--no-install-recommends", *chosen, "install", "--download-only"]
        archives = ["-o", f"Dir::Cache::archives={into}"]
        argv = [tool("apt-get"), *self._options, *archives, *options, *packages]
        run_tool(argv, timeout_s=7200)

    def newest_release_s(self) -> int:
        """Return the newest list's date, 0 if unknown."""
        texts = (path.read_text(errors="replace") for path in self._lists.glob("*Release"))
        dates = [
            match[1] for text in texts if (match := re.search(r"^Date: (.+)$", text, re.MULTILINE))
        ]
        return max((int(parsedate_to_datetime(date).timestamp()) for date in dates), default=0)


def host_acquire_options() -> dict[str, str]:
    """Return this host's proxies, certificates and retries as apt options."""
    dump = run_tool([tool("apt-config"), "dump"], timeout_s=30).decode("utf-8", "replace")
    return {
        match[1]: match[2]
        for line in dump.splitlines()
        if (match := _HOST_OPTIONS.fullmatch(line)) and match[2]
    }
