"""An author's ASGI app in a target cell: what is copied in, and the command that serves it.

It never runs on the host.

The server is hypercorn as it is installed here, packed with what it needs (pure Python, some 200
KiB); the cell's image only has to have Python 3.11.
"""

from __future__ import annotations

import importlib.metadata
import io
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from belljar.errors import HostError, PolicyError
from belljar.plan.network import StandInPlan
from belljar.plan.obstacles import NETWORK_EXTRA_HINT
from belljar.policy.files import read_regular
from belljar.units import format_size, printable

MAX_APP_BYTES: Final = 64 << 20
MAX_APP_FILES: Final = 10_000
SERVER: Final = "/opt/server.zip"
APP: Final = "/opt/app.zip"
APP_DIRECTORY: Final = "/srv/app"
_PACKAGES: Final = ("hypercorn", "h11", "h2", "hpack", "hyperframe", "priority", "wsproto")
_BOOT: Final = f"""\
import sys, zipfile
zipfile.ZipFile("{APP}").extractall("{APP_DIRECTORY}")
sys.path[:0] = ["{SERVER}", "{APP_DIRECTORY}"]
from hypercorn.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def serving_command(stand_in: StandInPlan) -> list[str]:
    """What runs in the target cell. Pure."""
    binds = [word for port in stand_in.ports for word in ("--bind", f"0.0.0.0:{port.number}")]
    return ["python3", "-c", _BOOT, str(stand_in.settings["app"]), *binds]


def server_archive() -> bytes:
    """The server and what it needs, as an archive that Python imports from.

    Raises `HostError` when it is not installed here.
    """
    try:
        files = [file for name in _PACKAGES for file in importlib.metadata.files(name) or ()]
    except importlib.metadata.PackageNotFoundError as error:
        raise HostError(
            f"the package {error.name} is missing",
            where="stand-ins of kind `python`",
            hint=NETWORK_EXTRA_HINT,
        ) from error
    sources = [file for file in files if file.suffix == ".py" and ".." not in file.parts]
    return _archive((str(file), Path(str(file.locate())).read_bytes()) for file in sources)


def app_archive(stand_in: StandInPlan) -> bytes:
    """The author's directory, at most `MAX_APP_BYTES` in `MAX_APP_FILES` files; links are left out.

    Raises `PolicyError`.
    """
    directory = stand_in.directory
    if directory is None:
        raise _refused(stand_in, "it names no directory")
    found = sorted(
        path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()
    )
    found = [path for path in found if path.resolve().is_relative_to(directory.resolve())]
    total_bytes = sum(path.stat().st_size for path in found)
    if len(found) > MAX_APP_FILES or total_bytes > MAX_APP_BYTES:
        most = f"{MAX_APP_FILES:,} files with {format_size(MAX_APP_BYTES)}"
        raise _refused(
            stand_in, f"{len(found):,} files with {format_size(total_bytes)}; at most {most}"
        )
    try:
        names = [str(path.relative_to(directory)) for path in found]
        return _archive([(name, read_regular(directory, name, MAX_APP_BYTES)) for name in names])
    except (OSError, ValueError) as error:
        reason = error.strerror or "an error" if isinstance(error, OSError) else str(error)
        raise _refused(stand_in, f"a file of it can't be read: {reason.lower()}") from error


def _archive(files: Iterator[tuple[str, bytes]] | Sequence[tuple[str, bytes]]) -> bytes:
    """Equal files give equal bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(
                zipfile.ZipInfo(name, date_time=_EPOCH), content, compress_type=zipfile.ZIP_DEFLATED
            )
    return packed.getvalue()


def _refused(stand_in: StandInPlan, what: str) -> PolicyError:
    return PolicyError(
        f"the app can't be copied in: {printable(what)}",
        where=f"network.stand_ins.{stand_in.id}.files",
        hint="name a directory with the app's modules, and put much data into an image",
    )
