"""Packages that are made from what a setting says, in memory. Pure."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import gmtime
from typing import Any, TypeAlias

from belljar.network.gateway.context import StandInContext
from belljar.network.stand_ins.files import StoredFile

Pack: TypeAlias = Callable[[Mapping[str, Any], int], tuple[str, bytes]]
"""File name and content of a package; the number is its time."""


def made_files(context: StandInContext, pack: Pack) -> Iterator[StoredFile]:
    """The files of the setting `packages`: each with `name`, `version`, `age_s` and `files`, path →
    text.
    """
    packages: Any = context.settings.get("packages") or ()
    for package in packages:
        mtime_s = int(context.clock() - package["age_s"])
        name, content = pack(package, mtime_s)
        yield StoredFile(
            name=name, path=Path(), size_bytes=len(content), mtime_s=mtime_s, content=content
        )


def npm_package(package: Mapping[str, Any], mtime_s: int) -> tuple[str, bytes]:
    """As `npm pack` makes it."""
    about = {
        "name": package["name"],
        "version": package["version"],
        "main": "index.js",
        "license": "UNLICENSED",
    }
    files = {"package.json": json.dumps(about, indent=2) + "\n", **package["files"]}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"package/{path}")
            entry.size, entry.mtime, entry.mode = len(text.encode()), mtime_s, 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
    base = package["name"].removeprefix("@").replace("/", "-")
    return f"{base}-{package['version']}.tgz", gzip.compress(out.getvalue(), mtime=mtime_s)


def wheel(package: Mapping[str, Any], mtime_s: int) -> tuple[str, bytes]:
    """A pure Python wheel (PEP 427)."""
    name, version = package["name"], package["version"]
    base = f"{name.replace('-', '_')}-{version}"
    about = f"{base}.dist-info"
    files = {
        **package["files"],
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: "
        f"{version}\nRequires-Python: >=3.9\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: hatchling 1.21.1\nRoot-Is-Purelib: "
        "true\nTag: py3-none-any\n",
    }
    lines = [f"{path},sha256={_digest(text)},{len(text.encode())}" for path, text in files.items()]
    record = f"{about}/RECORD"
    files[record] = "\n".join((*lines, f"{record},,")) + "\n"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():
            entry = zipfile.ZipInfo(path, gmtime(mtime_s)[:6])
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
            archive.writestr(entry, text)
    return f"{base}-py3-none-any.whl", out.getvalue()


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
