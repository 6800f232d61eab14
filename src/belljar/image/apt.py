"""Debian package sources of this host, and apt in a private directory.

Belljar names no mirror of its own. apt needs no root here, and checks the signatures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

from belljar.errors import HostError
from belljar.image.tools import run_tool, tool

DEBIAN_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# The older form of sources.list(5).
_ONE_LINE: Final = re.compile(
    r"deb\s+(?:\[(?:[^\]]*?\bsigned-by=(?P<key>[^\]\s]+))?[^\]]*\]\s+)?"
    r"(?P<uri>\S+)\s+(?P<suite>\S+)\s*(?P<components>.*)"
)
_STANZA: Final = (
    "Types: deb\nURIs: {uri}\nSuites: {suite}\nComponents: {components}\nSigned-By: {key}\n"
)
# Other distributions have a `main`, too, which is no Debian.
_CODENAMES: Final = frozenset(
    {"bookworm", "trixie", "forky", "duke", "sid", "testing", "stable", "oldstable", "unstable"}
)
# A line of `--print-uris`: address, file, size, digest.
_URI: Final = re.compile(r"^'[^']+' (\S+\.deb) (\d+) (\S*)", re.MULTILINE)
_HOST_OPTIONS: Final = re.compile(
    r'(Acquire::(?:https?::|ftp::|Check-|Retries|ForceIPv)\S*) "(.*)";'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AptSource:
    """`signed_by`: the keyring; "" for apt's trusted keys."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...] = ("main",)
    signed_by: str = ""

    def deb822(self) -> str:
        """The source as a deb822 stanza."""
        fields = {
            "Types": "deb",
            "URIs": self.uri,
            "Suites": " ".join(self.suites),
            "Components": " ".join(self.components),
            "Signed-By": self.signed_by,
        }
        return "".join(f"{name}: {value}\n" for name, value in fields.items() if value)


def parse_sources(text: str, *, deb822: bool) -> list[AptSource]:
    """Enabled binary package sources in one of apt's files."""
    if not deb822:
        lines = (_ONE_LINE.fullmatch(line.partition("#")[0].strip()) for line in text.splitlines())
        text = "\n".join(_STANZA.format(**line.groupdict("")) for line in lines if line)
    uncommented = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    found = []
    for stanza in re.split(r"\n[ \t]*\n", uncommented):
        fields = {name.lower(): value for name, value in parse_stanza(stanza).items()}
        is_off = fields.get("enabled", "yes").lower() in {"no", "false", "0"}
        if is_off or "deb" not in fields.get("types", "").split():
            continue
        key = fields.get("signed-by", "")
        # A key may also be written into the file itself; a path is all we can hand on.
        signed_by = key if key.startswith("/") and "\n" not in key else ""
        suites = tuple(fields.get("suites", "").split())
        parts = tuple(fields.get("components", "").split())
        found += [
            AptSource(uri=uri, suites=suites, components=parts, signed_by=signed_by)
            for uri in fields.get("uris", "").split()
        ]
    return found


def host_sources() -> list[AptSource]:
    """All package sources in apt's order, without unreadable files."""
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    return [
        source
        for file in files
        if file.suffix in {".list", ".sources"}
        for source in parse_sources(_text(file), deb822=file.suffix == ".sources")
    ]


def debian_sources(
    known: Sequence[AptSource], codename: str, *, mirror: str = ""
) -> list[AptSource]:
    """The sources for Debian `codename`: main, updates and security, as the host has them.

    With `mirror`, main and updates from there. Raises `HostError` when no mirror is known.
    """
    if mirror:
        return [
            AptSource(uri=mirror, suites=(codename, f"{codename}-updates"), signed_by=_keyring(""))
        ]
    # `main` of a suite that Debian has, best from a tree called `debian`.
    plain = [s for s in known if "main" in s.components and not _CODENAMES.isdisjoint(s.suites)]
    main = next((s for s in plain if s.uri.rstrip("/").endswith("debian")), next(iter(plain), None))
    if main is None:
        hint = "name one with --mirror URL (and install debian-archive-keyring)"
        raise HostError("apt's sources name no Debian mirror", where="/etc/apt", hint=hint)
    keyring = _keyring(main.signed_by)
    found = [AptSource(uri=main.uri, suites=(codename, f"{codename}-updates"), signed_by=keyring)]
    security = next(
        (s for s in known if any(suite.endswith("-security") for suite in s.suites)), None
    )
    if security is not None:
        keyring = _keyring(security.signed_by)
        suites = (f"{codename}-security",)
        found.append(AptSource(uri=security.uri, suites=suites, signed_by=keyring))
    return found


def kernel_sources(
    known: Sequence[AptSource], codename: str, *, mirror: str = ""
) -> list[AptSource]:
    """Debian 13's own suite, or Debian 12's backports."""
    main = debian_sources(known, codename, mirror=mirror)[0]
    suite = codename if codename in {"trixie", "forky", "sid"} else "bookworm-backports"
    return [AptSource(uri=main.uri, suites=(suite,), signed_by=main.signed_by)]


class PrivateApt:
    """apt's tools with their state in `directory`."""

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
        """Fetch the signed package lists. Raises `HostError`."""
        run_tool([tool("apt-get"), *self._options, "-q", "update"], timeout_s=600)

    def show(self, package: str) -> dict[str, str]:
        """The fields of a package's newest version. Raises `HostError`."""
        argv = [tool("apt-cache"), *self._options, "show", "--no-all-versions", package]
        return parse_stanza(run_tool(argv, timeout_s=60).decode("utf-8", "replace"))

    def download(self, package: str, into: Path) -> Path:
        """Fetch a package's verified file. Raises `HostError`."""
        run_tool(
            [tool("apt-get"), *self._options, "-q", "download", package], timeout_s=1800, cwd=into
        )
        if len(found := [*into.glob("*.deb")]) != 1:
            raise HostError(f"apt fetched {len(found)} files for {package}", where="apt-get")
        return found[0]

    def closure(self, packages: Sequence[str], *, suite: str = "") -> dict[str, tuple[int, str]]:
        """The packages' files with all dependencies of an empty host: size and SHA-256."""
        argv = self._install(packages, suite)
        options = ["--print-uris", "-o", "Acquire::ForceHash=SHA256"]
        printed = run_tool([argv[0], *options, *argv[1:]], timeout_s=300)
        found = _URI.findall(printed.decode("utf-8", "replace"))
        named = {name.partition("_")[0] for name, _, sha in found if sha.startswith("SHA256:")}
        if missing := {*packages, *(name.partition("_")[0] for name, *_ in found)} - named:
            what = f"apt names no file with a digest for {', '.join(sorted(missing))}"
            raise HostError(what, where="apt-get install")
        return {name: (int(size), digest.partition(":")[2]) for name, size, digest in found}

    def download_closure(self, packages: Sequence[str], into: Path, *, suite: str = "") -> None:
        """Fetch what `closure` lists. Raises `HostError`."""
        (into / "partial").mkdir(parents=True, exist_ok=True)
        archives = ["-o", f"Dir::Cache::archives={into}", "--download-only"]
        argv = self._install(packages, suite)
        run_tool([argv[0], *archives, *argv[1:]], timeout_s=7200)

    def _install(self, packages: Sequence[str], suite: str) -> list[str]:
        chosen = ["-t", suite] if suite else []
        options = ["-q", "-y", "--no-install-recommends", *chosen, "install"]
        return [tool("apt-get"), *self._options, *options, *packages]

    def newest_release_s(self) -> int:
        """The newest list's date, in Unix seconds; 0 if unknown."""
        texts = (_text(path) for path in self._lists.glob("*Release"))
        dates = [
            match[1] for text in texts if (match := re.search(r"^Date: (.+)$", text, re.MULTILINE))
        ]
        return max((int(parsedate_to_datetime(date).timestamp()) for date in dates), default=0)


def host_acquire_options() -> dict[str, str]:
    """This host's proxies, certificates and retries as apt options."""
    dump = run_tool([tool("apt-config"), "dump"], timeout_s=30).decode("utf-8", "replace")
    return {
        match[1]: match[2]
        for line in dump.splitlines()
        if (match := _HOST_OPTIONS.fullmatch(line)) and match[2]
    }


def parse_stanza(text: str) -> dict[str, str]:
    """The first stanza; continuations follow a newline."""
    fields: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if not line.strip():
            if fields:
                break
        elif line[0] in " \t":
            fields[name] = f"{fields.get(name, '')}\n{line.strip()}"
        else:
            name, _, value = line.partition(":")
            fields[name] = value.strip()
    return fields


def _keyring(signed_by: str) -> str:
    return signed_by or (str(DEBIAN_KEYRING) if DEBIAN_KEYRING.exists() else "")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
