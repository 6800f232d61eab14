"""A repository made in memory out of package files: its indexes, its signed release files, its
pool.

Format: DebianRepository/Format in the Debian wiki. Every suite has the same content; what
differs is the name in its Release file.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from belljar.network.stand_ins.debian.deb import Control, DebError, read_control
from belljar.network.stand_ins.debian.openpgp import SigningKey
from belljar.network.stand_ins.files import Digests, OneRead, StoredFile

_COMPONENTS: Final = (
    "main",
    "contrib",
    "non-free",
    "non-free-firmware",
    "restricted",
    "universe",
    "multiverse",
)
_ALWAYS: Final = frozenset({"amd64", "arm64"})
_SUITE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._~-]{0,62}(?:/updates)?", re.ASCII)
_MAX_SUITES: Final = 100
_DAY_S: Final = 86_400


class Repository:
    """What a directory of `.deb` files holds, as apt wants it.

    Read at the first question; files that are no packages are left out (`check` has named them).
    """

    def __init__(self, directory: Path, now_s: int) -> None:
        """`now_s`: the time that the Release file is dated a day before, so that a guest's clock
        may be somewhat behind.
        """
        self._directory = OneRead(directory)
        self._digests = Digests("md5", "sha256")
        self.made_s = now_s - _DAY_S
        self._key: SigningKey | None = None
        self._indexes: dict[str, bytes] | None = None
        self._pool: dict[str, StoredFile] = {}
        self._releases: dict[str, str] = {}
        self._by_hash: dict[str, bytes] = {}

    @property
    def key(self) -> SigningKey:
        """The repository's key, made when it is first needed."""
        if self._key is None:
            self._key = SigningKey.new(
                "Archive Automatic Signing Key <ftpmaster@localhost>", self.made_s
            )
        return self._key

    async def pool_file(self, name: str) -> tuple[StoredFile, str] | None:
        """A package file by its path from `pool/` on, and its SHA-256."""
        await self._indexed()
        file = self._pool.get(name)
        return (file, (await self._digests.of(file))["sha256"]) if file else None

    async def index(self, name: str) -> bytes | None:
        """An index by its path below a suite (`main/binary-amd64/Packages.xz`), or by its hash."""
        indexes = await self._indexed()
        if "/by-hash/SHA256/" in name:
            return self._by_hash.get(name.rpartition("/")[2])
        return indexes.get(name)

    async def flat_index(self, name: str) -> bytes | None:
        """`Packages` and its packed forms with every package in it, for sources that end in a
        slash.
        """
        return (await self._indexed()).get(f"flat/{name}")

    async def release(self, suite: str) -> str | None:
        """The Release file of a suite; `None` for what can't be a suite's name. "": of a flat
        repository.
        """
        if suite and _SUITE.fullmatch(suite) is None:
            return None
        known = self._releases.get(suite)
        if known is None:
            known = self._render_release(suite, await self._indexed())
            if len(self._releases) < _MAX_SUITES:
                self._releases[suite] = known
        return known

    async def _indexed(self) -> Mapping[str, bytes]:
        if self._indexes is None:
            stanzas = [await self._stanza(file, control) for file, control in self._packages()]
            architectures = _ALWAYS | {arch for arch, _ in stanzas if arch != "all"}
            texts = {
                f"main/binary-{arch}/Packages": "\n".join(
                    t for a, t in stanzas if a in {arch, "all"}
                )
                for arch in architectures
            }
            texts |= {
                f"{other}/binary-{arch}/Packages": ""
                for other in _COMPONENTS[1:]
                for arch in architectures
            }
            texts["flat/Packages"] = "\n".join(text for _, text in stanzas)
            packed = {text: _packed(text.encode()) for text in set(texts.values())}
            indexes = {
                name + ending: content
                for name, text in texts.items()
                for ending, content in packed[text].items()
            }
            self._by_hash = {
                hashlib.sha256(content).hexdigest(): content for content in indexes.values()
            }
            self._indexes = indexes
        return self._indexes

    def _packages(self) -> list[tuple[StoredFile, Control]]:
        found = []
        for file in self._directory.files.values():
            if file.name.endswith(".deb"):
                try:
                    found.append((file, read_control(file.path)))
                except (DebError, OSError):
                    continue
        return sorted(found, key=lambda pair: (pair[1].package, pair[1].version))

    async def _stanza(self, file: StoredFile, control: Control) -> tuple[str, str]:
        """A package's architecture and its stanza in an index.

        What the control file says of its own file's place and digests is left out.
        """
        digests = await self._digests.of(file)
        version = control.version.partition(":")[2] or control.version
        start = control.package[:4] if control.package.startswith("lib") else control.package[0]
        base = f"{control.package}_{version}_{control.architecture}.deb"
        name = f"pool/main/{start}/{control.package}/{base}"
        self._pool.setdefault(name, file)
        ours = (
            f"Filename: {name}\nSize: {file.size_bytes}\nMD5sum: {digests['md5']}\nSHA256: "
            f"{digests['sha256']}\n"
        )
        return control.architecture, _without(
            control.text, {"filename", "size", "md5sum", "sha1", "sha256", "sha512", "status"}
        ) + ours

    def _render_release(self, suite: str, indexes: Mapping[str, bytes]) -> str:
        below = "flat/" if not suite else ""
        files = {
            name.removeprefix("flat/"): content
            for name, content in indexes.items()
            if name.startswith("flat/") == bool(below)
        }
        architectures = sorted(
            {match[1] for name in indexes if (match := re.search(r"/binary-([^/]+)/", name))}
        )
        date = datetime.fromtimestamp(self.made_s, UTC).strftime("%a, %d %b %Y %H:%M:%S UTC")
        lines = ["Origin: Debian", "Label: Debian"]
        lines += [f"Suite: {suite}", f"Codename: {suite.partition('/')[0]}"] if suite else []
        lines += [
            f"Date: {date}",
            *(["Acquire-By-Hash: yes"] if suite else []),
            f"Architectures: {' '.join(architectures)}",
        ]
        lines += [f"Components: {' '.join(_COMPONENTS)}"] if suite else []
        lines += [
            "SHA256:",
            *(
                f" {hashlib.sha256(files[name]).hexdigest()} {len(files[name])} {name}"
                for name in sorted(files)
            ),
        ]
        return "\n".join(lines) + "\n"


def _packed(content: bytes) -> dict[str, bytes]:
    return {
        "": content,
        ".gz": gzip.compress(content, mtime=0),
        ".xz": lzma.compress(content, preset=1),
    }


def _without(stanza: str, names: set[str]) -> str:
    kept, dropping = [], False
    for line in stanza.splitlines():
        if line[:1] not in {" ", "\t"}:
            dropping = line.partition(":")[0].lower() in names
        if not dropping:
            kept.append(line)
    return "\n".join(kept) + "\n"
