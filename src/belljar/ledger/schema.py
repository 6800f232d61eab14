"""Checks a line, a signed checkpoint and a manifest; `kinds` has each kind's data.

It is strict, as an attacker may have made what is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from belljar.dataclass import asdict, dataclass, fields
from belljar.errors import LedgerError
from belljar.events import Actor, Kind, Trust
from belljar.ledger.chain import MerkleTree, canonical, parse_canonical
from belljar.ledger.keys import SigningKey, fingerprint_of, signature_is_good
from belljar.ledger.kinds import (
    DATA,
    HEX64,
    SCHEMA_VERSION,
    Shape,
    check_shape,
    items,
    matching,
    maybe,
    objects,
    one_of,
    shape_of,
)

# Room for the most data and bodies that a line has, escaped.
MAX_LINE_BYTES: Final = 1 << 20
# It has a fixed set of short fields.
MAX_CHECKPOINT_BYTES: Final = 4096
# More moves to a body, so that a line stays short enough to be read whole.
MAX_DATA_BYTES: Final = 64 << 10
# Whoever reads the event holds all of it in memory. A command of 4 MiB may take 7 bytes for each.
MAX_SPILLED_BYTES: Final = 32 << 20
# A line is read whole by whoever verifies it.
MAX_BODIES: Final = 64
# It is shown in terminals, and names files of an export.
BODY_NAME: Final = "[a-z0-9][a-z0-9_.-]{0,63}"
SPILLED_BODY: Final = "data"
# Replaces data too large for a line; the body of that name is its canonical JSON.
SPILLED: Final = {"$body": SPILLED_BODY}


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyRef:
    name: str
    sha256: str | None
    stored_sha256: str | None = None
    kept_bytes: int
    total_bytes: int

    @property
    def stored(self) -> str | None:
        """Return the digest of the kept bytes; None without either."""
        return (self.stored_sha256 or self.sha256) if self.kept_bytes else None


_BODY: Final = shape_of(
    "name:name sha256:sha256-or-null stored_sha256?:sha256-or-null kept_bytes:count "
    "total_bytes:count",
    name=matching(BODY_NAME),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    v: int
    seq: int
    prev: str
    time: str
    mono_ns: str
    kind: Kind
    cell: str | None
    actor: Actor
    trust: Trust
    data: dict[str, Any]
    bodies: tuple[BodyRef, ...]

    @classmethod
    def read(cls, value: Any) -> Line:  # noqa: ANN401 - JSON values
        """Read JSON. Raises `ValueError` with the first wrong field."""
        check_shape(value, _LINE)
        words = {"kind": Kind, "actor": Actor, "trust": Trust}
        named = {name: kind(value[name]) for name, kind in words.items()}
        bodies = tuple(BodyRef(**body) for body in value["bodies"])
        return cls(**{**value, **named, "bodies": bodies})

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "bodies": [asdict(body) for body in self.bodies]}


_LINE: Final = shape_of(
    "v:version seq:count prev:sha256 time:wall_time mono_ns:digits kind:kind cell:cell "
    "actor:actor trust:trust data:object bodies:bodies",
    # Text: nanoseconds since boot exceed what JSON's numbers carry exactly after 104 days.
    digits=matching("[0-9]{1,20}"),
    kind=one_of(*Kind),
    cell=maybe(matching("(?s:.){0,128}")),
    actor=one_of(*Actor),
    trust=one_of(*Trust),
    bodies=objects(_BODY, max_items=MAX_BODIES),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The signer states that the first `size` lines have this root."""

    v: int
    run_id: str
    number: int
    prev: str
    size: int
    root: str
    time: str
    key: str
    public_key: str
    final: bool
    manifest_sha256: str | None
    signature: str


_CHECKPOINT: Final = shape_of(
    "v:version run_id:run_id number:count prev:sha256 size:count root:sha256 time:wall_time "
    "key:sha256 public_key:sha256 final:flag manifest_sha256:sha256-or-null signature:hex128"
)


# Separate what the key signs: no statement can pass for a checkpoint, nor the reverse.
_CHECKPOINT_DOMAIN: Final = b"ledger checkpoint v1\n"
_OMISSION_DOMAIN: Final = b"ledger omission v1\n"


def _signed(key: SigningKey, domain: bytes, statement: dict[str, Any]) -> bytes:
    statement |= {"v": SCHEMA_VERSION, "key": key.fingerprint, "public_key": key.public_key}
    return canonical(statement | {"signature": key.sign(domain + canonical(statement))})


def _opened(raw: bytes, domain: bytes, shape: Shape) -> dict[str, Any]:
    statement = parse_canonical(raw)
    check_shape(statement, shape)
    unsigned = {name: value for name, value in statement.items() if name != "signature"}
    if statement["key"] != fingerprint_of(statement["public_key"]):
        raise ValueError("the fingerprint is not that of the public key beside it")
    signature, payload = statement["signature"], domain + canonical(unsigned)
    if not signature_is_good(statement["public_key"], signature, payload):
        raise ValueError("the signature is not good")
    return statement


def make_checkpoint(
    key: SigningKey,
    tree: MerkleTree,
    *,
    run_id: str,
    number: int,
    prev: str,
    time: str,
    manifest_sha256: str | None = None,
) -> bytes:
    """Return a signed line without newline; it is final with a manifest's digest."""
    statement: dict[str, Any] = {"run_id": run_id, "number": number, "prev": prev, "time": time}
    statement |= {"size": tree.size, "root": tree.root().hex()}
    statement |= {"final": manifest_sha256 is not None, "manifest_sha256": manifest_sha256}
    return _signed(key, _CHECKPOINT_DOMAIN, statement)


def parse_checkpoint(line: bytes) -> Checkpoint:
    """Read a checkpoint signed by the key it names, which the caller must check.

    Raises `ValueError`.
    """
    checkpoint = Checkpoint(**_opened(line, _CHECKPOINT_DOMAIN, _CHECKPOINT))
    if checkpoint.final != (checkpoint.manifest_sha256 is not None):
        raise ValueError("a final checkpoint, and only that, names the manifest's digest")
    return checkpoint


_FILE: Final = shape_of("sha256:sha256 bytes:count")
_BODY_TOTALS: Final = shape_of("count:count bytes:count")
_MANIFEST: Final = shape_of(
    "v:version run_id:run_id key:sha256 public_key:sha256 files:object bodies:totals",
    totals=lambda value: check_shape(value, _BODY_TOTALS),
)


def check_manifest(value: Any) -> None:  # noqa: ANN401 - JSON values
    """Check all fields. Raises `ValueError` that names the first wrong one."""
    check_shape(value, _MANIFEST)
    for each in value["files"].values():
        check_shape(each, _FILE)


def check_data(kind: Kind, data: dict[str, Any]) -> None:
    """Check a kind's data. Raises `ValueError` for the first invalid field."""
    try:
        check_shape(data, DATA[Kind(kind)], extra=True)
    except ValueError as error:
        raise ValueError(f"data of {kind}: {error}") from error


OMISSIONS: Final = "omissions.jsonl"
MAX_OMISSION_BYTES: Final = 64 << 20  # nearly a million bodies
_OMISSION: Final = shape_of(
    "v:version run_id:run_id manifest_sha256:sha256 action:redacted|purged time:wall_time "
    "classes:texts bodies:digests files:texts key:sha256 public_key:sha256 signature:hex128",
    digests=items(HEX64),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Omission:
    """`bodies` are digests, `files` paths in the run directory."""

    action: str
    time: str
    classes: tuple[str, ...]
    bodies: frozenset[str]
    files: frozenset[str]
    run_id: str
    key: str
    manifest_sha256: str


def make_omission(
    key: SigningKey,
    final: Checkpoint,
    *,
    time: str,
    classes: Iterable[str],
    bodies: Iterable[str],
    files: Iterable[str],
) -> bytes:
    """Return a signed statement's line, without newline. Raises `LedgerError`."""
    statement: dict[str, Any] = {"run_id": final.run_id, "manifest_sha256": final.manifest_sha256}
    statement |= {"action": "redacted", "time": time, "classes": list(classes)}
    statement |= {"bodies": sorted(bodies), "files": sorted(files)}
    line = _signed(key, _OMISSION_DOMAIN, statement)
    # With its newline it must not be longer than what a reader takes.
    if len(line) >= MAX_OMISSION_BYTES:
        raise LedgerError("too many bodies for one statement", where=OMISSIONS)
    return line


def parse_omission(raw: bytes, where: str) -> Omission:
    """Read a statement signed by the key that it names, which the caller must check.

    Raises `LedgerError`.
    """
    try:
        statement = _opened(raw, _OMISSION_DOMAIN, _OMISSION)
    except ValueError as error:
        raise LedgerError(f"not a statement of what was left out: {error}", where=where) from error
    kinds = {"classes": tuple, "bodies": frozenset, "files": frozenset}
    found = {each.name: statement[each.name] for each in fields(Omission)}
    return Omission(**found | {name: kind(found[name]) for name, kind in kinds.items()})
