"""Task data put into cells before anything runs there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from belljar.cell.cell import Cell
from belljar.cell.local_tree import Transfer
from belljar.errors import CellError, PolicyError
from belljar.events import JsonValue, Kind
from belljar.policy.files import Tree, read_entry, reason
from belljar.policy.sections import TaskData, TaskFile, trees_of
from belljar.units import printable

HOSTS: Final = "/etc/hosts"
TASK_FILE: Final = "the task's compose file"
# It is the image's file, and is read whole.
_MAX_HOSTS_BYTES: Final = 64 << 10
_TIMEOUT_S: Final = 60.0


async def put_in(cell: Cell, data: TaskData) -> None:
    """Copy in files and hosts. Raise `PolicyError`, `OSError`."""
    own = data.own
    with reading_for():
        trees = await anyio.to_thread.run_sync(trees_of, Path(data.root), own)
    for file in own.files:
        await _copy(cell, file, trees[file.target])
    if own.hosts:
        try:
            written = await cell.read_file(HOSTS, max_bytes=_MAX_HOSTS_BYTES, user="0")
        except FileNotFoundError:
            written = b""
        lines = "".join(f"{address}\t{name}\n" for name, address in own.hosts)
        begun = written if not written or written.endswith(b"\n") else written + b"\n"
        await cell.write_file(HOSTS, begun + lines.encode(), mode=0o644, user="0", owner="0:0")


async def _copy(cell: Cell, file: TaskFile, tree: Tree) -> None:
    """Copy one source, for root."""
    first = tree.entries[0]
    if tree.is_directory:
        transfer = await put_directory(cell, tree, file.target, user="0:0")
        number, size, sha256 = transfer.files, transfer.total_bytes, transfer.sha256
    else:
        with reading_for():
            contents = await anyio.to_thread.run_sync(read_entry, tree, first)
        await cell.write_file(file.target, contents, mode=first.mode, user="0", owner="0:0")
        number, size, sha256 = 1, len(contents), hashlib.sha256(contents).hexdigest()
    data: dict[str, JsonValue] = {"source": file.source, "target": file.target, "files": number}
    data |= {"key": "volumes", "bytes": size, "sha256": sha256}
    cell.note(Kind.TASK_FILES_COPIED, data)


@contextmanager
def reading_for(where: str = TASK_FILE) -> Iterator[None]:
    """Raise a host file's error as a `PolicyError`."""
    try:
        yield
    except (OSError, ValueError) as error:
        why = printable(reason(error), max_chars=300)
        hint = "leave the files as they are while it runs; `belljar check` looks at a task's"
        what = f"a file can't be copied into its cell: {why}"
        raise PolicyError(what, where=where, hint=hint) from error


async def put_directory(
    cell: Cell, tree: Tree, target: str, *, user: str | None, where: str = TASK_FILE
) -> Transfer:
    """Replace the image's directory. Raise as `Cell.upload`, and `PolicyError`."""
    with suppress(FileNotFoundError):
        await cell.remove(target, recursive=True, user="0:0")
    return await cell._put_tree(tree, target, reading=partial(reading_for, where), user=user)


def not_taken(cell: Cell, why: str) -> CellError:
    return CellError(
        f"a file can't be put there: {printable(why.strip(), max_chars=300)}",
        where=f"cell {cell.id}",
        hint="look at what the image has there",
    )


_ANCHORS: Final = (
    "/usr/local/share/ca-certificates",  # Debian, Alpine: survives update-ca-certificates
    "/etc/pki/ca-trust/source/anchors",  # Red Hat: survives update-ca-trust
    "/etc/ca-certificates/trust-source/anchors",  # Arch
    "/etc/pki/trust/anchors",  # SUSE
)
_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine, Arch
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Red Hat
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # Alpine's OpenSSL, and others'
)
# Where OpenSSL looks by a name's hash; Debian's Python reads no bundle by default.
_HASHED: Final = "/etc/ssl/certs"
# Where every cell of a range has all authorities together, whatever its image had.
BUNDLE: Final = "/etc/ssl/certs/ca-certificates.crt"
_NAME: Final = "local-root.crt"
# For programs that bring authorities of their own: Python's certifi, Node, pip, git's and curl's
# static builds.
ENVIRONMENT: Final[Mapping[str, str]] = dict.fromkeys(
    """
    SSL_CERT_FILE CURL_CA_BUNDLE REQUESTS_CA_BUNDLE PIP_CERT NODE_EXTRA_CA_CERTS GIT_SSL_CAINFO
    AWS_CA_BUNDLE npm_config_cafile CARGO_HTTP_CAINFO
    """.split(),  # noqa: SIM905 - shorter to read
    BUNDLE,
)


def trust_script() -> str:
    anchors, bundles = " ".join(_ANCHORS), " ".join(_BUNDLES)
    return f"""set -e
pem=$(cat)
for d in {anchors}; do if [ -d "$d" ]; then printf '%s\\n' "$pem" > "$d/{_NAME}"; fi; done
for b in {bundles}; do if [ -f "$b" ]; then printf '\\n%s\\n' "$pem" >> "$b"; fi; done
if ! [ -f {BUNDLE} ]; then
  mkdir -p {BUNDLE.rpartition("/")[0]}
  for b in {bundles}; do if [ -f "$b" ]; then cat "$b" > {BUNDLE}; break; fi; done
  if ! [ -f {BUNDLE} ]; then printf '%s\\n' "$pem" > {BUNDLE}; fi
fi
if command -v openssl > /dev/null && [ -d {_HASHED} ]; then
  h=$(printf '%s\n' "$pem" | openssl x509 -noout -subject_hash) &&
    printf '%s\n' "$pem" > "{_HASHED}/$h.0"
fi
"""


async def trust(cell: Cell, certificate_pem: bytes) -> None:
    """Have the cell trust the authority. Raise `CellError`."""
    script = ["/bin/sh", "-c", trust_script()]
    output = await cell.exec(
        script, input=certificate_pem, user="0:0", cwd="/", timeout_s=_TIMEOUT_S
    )
    if output.returncode != 0:
        why = printable(output.why_not_started or output.stderr_text, max_chars=300)
        raise CellError(
            f"the range's certificate could not be put into the cell's trust stores: {why}",
            where=f"cell {cell.id}",
            hint="use an image with /bin/sh, or stand-ins without TLS",
        )
