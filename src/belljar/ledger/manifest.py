"""The manifest: the digest of every file of a finished run that nothing else covers."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from belljar.errors import LedgerError
from belljar.ledger.bodies import BODIES, body_path
from belljar.ledger.chain import parse_canonical, sha256_hex
from belljar.ledger.files import (
    digest_file,
    exists,
    has_digest,
    open_beneath,
    read_beneath,
    walk_files,
)
from belljar.ledger.schema import Checkpoint, Manifest
from belljar.ledger.writer import CHECKPOINTS

MANIFEST: Final = "manifest.json"
MANIFEST_PART: Final = "manifest.json.new"
"""The manifest until the final checkpoint that names its digest is on the disk."""
_MAX_MANIFEST_BYTES: Final = 64 << 20


def digests_of(run_dir: Path, *, synced: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Path → digest and size of every file that the manifest lists, each forced to the disk, but
    those that are on it (`synced`) already. Raises `OSError`, and `LedgerError` at a link or
    special file.
    """
    root = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        paths = [path for path in walk_files(root) if _is_listed(path)]
        return {path: _digest(root, path, is_synced=path in synced) for path in paths}
    finally:
        os.close(root)


def check_finished_files(root: int, final: Checkpoint, bodies: Mapping[bytes, int]) -> list[str]:
    """Check the manifest against the final checkpoint and every file against the manifest (bodies:
    against those the events name). Returns warnings.

    Raises:
        LedgerError: the first file, by name, that is changed, added or missing.
    """
    name, warnings = _manifest_name(root)
    manifest = _load(root, name, final)
    due = dict(manifest.files)
    for path in walk_files(root):
        if path.startswith(f"{BODIES}/"):
            digest = path.rpartition("/")[2]
            try:
                named = path == body_path(digest) and bytes.fromhex(digest) in bodies
            except ValueError:
                named = False
            if not named:
                raise LedgerError("added: no event names it", where=path)
        elif path not in {name, CHECKPOINTS}:
            expected = due.pop(path, None)
            if expected is None:
                raise LedgerError("added: the manifest doesn't list it", where=path)
            with open_beneath(root, path) as file:
                if not has_digest(file, expected.sha256, expected.bytes):
                    raise LedgerError("changed: its digest is not the manifest's", where=path)
    if due:
        raise LedgerError("missing: the manifest lists it", where=min(due))
    return warnings


def _manifest_name(root: int) -> tuple[str, list[str]]:
    """A crash between the final checkpoint and the rename leaves the manifest under its first name:
    complete all the same.
    """
    if not exists(root, MANIFEST) and exists(root, MANIFEST_PART):
        return MANIFEST_PART, [
            f"the process died as it put {MANIFEST} in place; {MANIFEST_PART} is complete"
        ]
    return MANIFEST, []


def _load(root: int, name: str, final: Checkpoint) -> Manifest:
    try:
        content = read_beneath(root, name, max_bytes=_MAX_MANIFEST_BYTES)
    except FileNotFoundError as error:
        raise LedgerError("missing", where=name) from error
    except ValueError as error:
        raise LedgerError(str(error), where=name) from error
    if sha256_hex(content) != final.manifest_sha256:
        raise LedgerError("changed: its digest is not the one in the final checkpoint", where=name)
    try:
        manifest = Manifest.read(parse_canonical(content.removesuffix(b"\n")))
    except ValueError as error:
        raise LedgerError(f"not a manifest: {error}", where=name) from error
    if (manifest.run_id, manifest.key, manifest.public_key) != (
        final.run_id,
        final.key,
        final.public_key,
    ):
        raise LedgerError("of another run or key than the final checkpoint", where=name)
    return manifest


def _is_listed(path: str) -> bool:
    return path not in {MANIFEST, MANIFEST_PART, CHECKPOINTS} and not path.startswith(f"{BODIES}/")


def _digest(root: int, path: str, *, is_synced: bool) -> dict[str, Any]:
    with open_beneath(root, path) as file:
        if not is_synced:
            os.fsync(file.fileno())
        sha256, size = digest_file(file)
    return {"sha256": sha256, "bytes": size}
