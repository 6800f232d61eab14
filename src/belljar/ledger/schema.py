"""The schema of a line, a checkpoint and a manifest; `kinds` has each kind's data.

`docs/events.md` is for people. Strict: an attacker may have made what is read.
"""

from __future__ import annotations

from typing import Any, Final

from belljar.dataclass import asdict, dataclass
from belljar.events import Actor, Kind, Trust
from belljar.ledger.kinds import (
    DATA,
    HEX64,
    RUN_ID,
    Optional,
    Shape,
    check_shape,
    count,
    exactly,
    flag,
    json_object,
    matching,
    maybe,
    objects,
    one_of,
)

SCHEMA_VERSION: Final = 3
MAX_LINE_BYTES: Final = 1 << 20
MAX_DATA_BYTES: Final = 64 << 10
MAX_SPILLED_BYTES: Final = 16 << 20
MAX_BODIES: Final = 64
SPILLED_BODY: Final = "data"
SPILLED: Final = {"$body": SPILLED_BODY}
"""Replaces data too large for a line; the body of that name is its canonical JSON."""

HEX128: Final = matching("[0-9a-f]{128}")
WALL_TIME: Final = matching("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{6}Z")
_VERSION: Final = exactly(SCHEMA_VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyRef:
    """A line's reference to bytes beside the ledger."""

    name: str
    sha256: str | None
    stored_sha256: str | None = None
    kept_bytes: int
    total_bytes: int

    @property
    def stored(self) -> str | None:
        """The digest of the kept bytes; None without either."""
        return (self.stored_sha256 or self.sha256) if self.kept_bytes else None


_BODY: Final[Shape] = {
    "name": matching("[a-z0-9][a-z0-9_.-]{0,63}"),
    "sha256": maybe(HEX64),
    "stored_sha256": Optional(maybe(HEX64)),
    "kept_bytes": count,
    "total_bytes": count,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One event as it stands in the ledger."""

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
        """From a JSON value. Raises `ValueError` that names the first wrong field."""
        check_shape(value, _LINE)
        named = {
            "kind": Kind(value["kind"]),
            "actor": Actor(value["actor"]),
            "trust": Trust(value["trust"]),
            "bodies": tuple(BodyRef(**body) for body in value["bodies"]),
        }
        return cls(**{**value, **named})

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "bodies": [asdict(body) for body in self.bodies]}


_LINE: Final[Shape] = {
    "v": _VERSION,
    "seq": count,
    "prev": HEX64,
    "time": WALL_TIME,
    "mono_ns": matching("[0-9]{1,20}"),
    "kind": one_of(*Kind),
    "cell": maybe(matching("(?s:.){0,128}")),
    "actor": one_of(*Actor),
    "trust": one_of(*Trust),
    "data": json_object,
    "bodies": objects(_BODY, max_items=MAX_BODIES),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A signed statement: the first `size` lines have this root."""

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

    @classmethod
    def read(cls, value: Any) -> Checkpoint:  # noqa: ANN401 - JSON values
        """From a JSON value; the signature isn't checked. Raises as `Line.read`."""
        check_shape(value, _CHECKPOINT)
        return cls(**value)


_CHECKPOINT: Final[Shape] = {
    "v": _VERSION,
    "run_id": RUN_ID,
    "number": count,
    "prev": HEX64,
    "size": count,
    "root": HEX64,
    "time": WALL_TIME,
    "key": HEX64,
    "public_key": HEX64,
    "final": flag,
    "manifest_sha256": maybe(HEX64),
    "signature": HEX128,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """A file of the run directory."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Files of a finished run beside checkpoints and bodies."""

    run_id: str
    key: str
    public_key: str
    files: dict[str, FileDigest]

    @classmethod
    def read(cls, value: Any) -> Manifest:  # noqa: ANN401 - JSON values
        """From a JSON value. Raises as `Line.read`."""
        check_shape(value, _MANIFEST)
        for each in value["files"].values():
            check_shape(each, {"sha256": HEX64, "bytes": count})
        files = {path: FileDigest(**digest) for path, digest in value["files"].items()}
        return cls(
            run_id=value["run_id"], key=value["key"], public_key=value["public_key"], files=files
        )


_MANIFEST: Final[Shape] = {
    "v": _VERSION,
    "run_id": RUN_ID,
    "key": HEX64,
    "public_key": HEX64,
    "files": json_object,
    "bodies": lambda value: check_shape(value, {"count": count, "bytes": count}),
}


def check_data(kind: Kind, data: dict[str, Any]) -> None:
    """Raises `ValueError` for the first field that this kind doesn't allow."""
    try:
        check_shape(data, DATA[Kind(kind)], extra=True)
    except ValueError as error:
        raise ValueError(f"data of {kind}: {error}") from error
