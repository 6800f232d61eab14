"""Signed statements of what was left out of a run directory on purpose.

They lie beside the ledger, which stays as it is: its lines name the digest of each missing body,
the manifest that of each missing file. Only the key that sealed the run can sign a statement.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from belljar.dataclass import dataclass
from belljar.errors import LedgerError
from belljar.ledger.chain import canonical, parse_canonical
from belljar.ledger.keys import SigningKey, fingerprint_of, signature_is_good
from belljar.ledger.kinds import HEX64, SCHEMA_VERSION, check_shape, items, shape_of
from belljar.ledger.schema import Checkpoint

OMISSIONS: Final = "omissions.jsonl"
# Separates what the key signs: no checkpoint can pass for a statement.
_DOMAIN: Final = b"ledger omission v1\n"
MAX_OMISSION_BYTES: Final = 64 << 20  # nearly a million bodies
_SHAPE: Final = shape_of(
    "v:version run_id:run_id manifest_sha256:sha256 action:redacted|purged time:wall_time "
    "classes:texts bodies:digests files:texts key:sha256 public_key:sha256 signature:hex128",
    digests=items(HEX64),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Omission:
    """One statement. `bodies`: digests; `files`: paths in the run directory."""

    action: str
    time: str
    classes: tuple[str, ...]
    bodies: frozenset[str]
    files: frozenset[str]
    run_id: str
    key: str
    manifest_sha256: str

    def check_of(self, final: Checkpoint, where: str) -> None:
        """Raise `LedgerError` unless the key that sealed this very run signed it."""
        sealed = (final.run_id, final.key, final.manifest_sha256)
        if (self.run_id, self.key, self.manifest_sha256) != sealed:
            raise LedgerError("of another run or key than the final checkpoint", where=where)

    def sentence(self, missing_bodies: int, missing_files: int) -> str:
        """Say what was left out, when and of which kind."""
        what = f"{missing_bodies} bodies and {missing_files} files"
        here = len(self.bodies) + len(self.files) - missing_bodies - missing_files
        rest = f"; {here} more that it names are still here" if here else ""
        return f"{what} were {self.action} on {self.time[:10]} ({', '.join(self.classes)}){rest}"


def make_omission(
    key: SigningKey,
    final: Checkpoint,
    *,
    time: str,
    classes: Iterable[str],
    bodies: Iterable[str],
    files: Iterable[str],
) -> bytes:
    """A signed statement, a line without newline. Raises `LedgerError` if it is too long."""
    statement = {
        "v": SCHEMA_VERSION,
        "run_id": final.run_id,
        "manifest_sha256": final.manifest_sha256,
        "action": "redacted",
        "time": time,
        "classes": list(classes),
        "bodies": sorted(bodies),
        "files": sorted(files),
        "key": key.fingerprint,
        "public_key": key.public_key,
    }
    line = canonical(statement | {"signature": key.sign(_DOMAIN + canonical(statement))})
    # With its newline it must not be longer than what a reader takes.
    if len(line) >= MAX_OMISSION_BYTES:
        raise LedgerError("too many bodies for one statement", where=OMISSIONS)
    return line


def parse_omission(raw: bytes, where: str) -> Omission:
    """A statement signed by the key that it names, which the caller must check.

    Raises `LedgerError`.
    """
    try:
        statement: dict[str, Any] = parse_canonical(raw)
        check_shape(statement, _SHAPE)
        signature, public_key = statement.pop("signature"), statement["public_key"]
        is_good = statement["key"] == fingerprint_of(public_key) and signature_is_good(
            public_key, signature, _DOMAIN + canonical(statement)
        )
    except ValueError as error:
        raise LedgerError(f"not a statement of what was left out: {error}", where=where) from error
    if not is_good:
        raise LedgerError("the signature is not good", where=where)
    names = ("action", "time", "run_id", "key", "manifest_sha256")
    return Omission(
        **{name: statement[name] for name in names},
        classes=tuple(statement["classes"]),
        bodies=frozenset(statement["bodies"]),
        files=frozenset(statement["files"]),
    )
