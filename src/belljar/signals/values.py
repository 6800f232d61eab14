"""The scanner's searches and reports, and protected files."""

from __future__ import annotations

import csv
import hmac
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from belljar.dataclass import dataclass, field, replace
from belljar.errors import PolicyError
from belljar.policy.files import read_regular
from belljar.policy.guarding import Protected
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.policy.loaded import LoadedPolicy

MIN_VALUE_BYTES: Final = 10  # A shorter one would be found in what has nothing to do with it.
MAX_VALUE_BYTES: Final = 4096
MAX_VALUES: Final = 100_000  # All are looked for in each byte that leaves a cell.
MAX_VALUES_BYTES: Final = 64 << 20  # Each is several forms, held in memory.


class ValueSource(StrEnum):
    DECOY = "decoy"
    PROTECTED = "protected"
    FOREIGN = "foreign"  # A decoy of another sample: seen here, it was carried over.


class Channel(StrEnum):
    HTTP = "http"
    DNS = "dns"
    WEBSOCKET = "websocket"
    SMTP = "smtp"
    STREAM = "stream"
    FILE = "file"
    OUTPUT = "output"
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownValue:
    id: str  # Its name in events.
    text: str = field(repr=False)
    source: ValueSource
    kind: str = ""  # Its class in a hit; "": the source.
    case_sensitive: bool = True  # Another case is an encoding.

    @property
    def cls(self) -> str:
        return self.kind or self.source.value


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanBounds:
    depth: int = 5
    decoded_bytes: int = 16 << 20
    time_s: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSpec:
    values: tuple[KnownValue, ...] = field(default=(), repr=False)
    classes: tuple[str, ...] = ()
    key_hex: str = field(repr=False)
    bounds: ScanBounds = ScanBounds()

    def __post_init__(self) -> None:
        sizes = [len(value.text.encode(errors="surrogatepass")) for value in self.values]
        for value, size in zip(self.values, sizes, strict=True):
            if not MIN_VALUE_BYTES <= size <= MAX_VALUE_BYTES:
                bounds = f"{MIN_VALUE_BYTES} to {MAX_VALUE_BYTES}"
                raise ValueError(f"{value.id}: {size} bytes; a known value has {bounds}")
        if len(sizes) > MAX_VALUES or sum(sizes) > MAX_VALUES_BYTES:
            what = f"{len(sizes)} known values of {sum(sizes)} bytes"
            raise ValueError(f"{what}; at most {MAX_VALUES}, of {MAX_VALUES_BYTES}")

    def digest(self, found: bytes) -> str:
        return hmac.digest(bytes.fromhex(self.key_hex), found, "sha256").hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    cls: str
    value_id: str  # "" of a pattern.
    source: str  # A `ValueSource` or `pattern`.
    start: int  # In the outermost data.
    end: int
    decoding: tuple[str, ...]  # The outermost first.
    digest: str  # Of a known value as given.


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    hits: tuple[Hit, ...] = ()
    problem: str = ""  # The bound that ended the scan.

    @property
    def complete(self) -> bool:
        return not self.problem


def protected_values(item: Protected, content: bytes = b"") -> tuple[KnownValue, ...]:
    """Return an entry's values. Raises `ValueError`, `csv.Error`."""
    values: dict[str, KnownValue] = {}
    for text in _texts(item, content) if item.file else (item.value,):
        stripped = text.strip()
        size = len(stripped.encode())
        if size > MAX_VALUE_BYTES:
            raise ValueError(f"a protected value has at most {MAX_VALUE_BYTES} bytes")
        # Short ones are left out, not refused: a column of names has some.
        if size >= MIN_VALUE_BYTES and stripped not in values:
            name = f"{item.id}/{len(values) + 1}" if item.file else item.id
            known = KnownValue(id=name, text=stripped, source=ValueSource.PROTECTED)
            values[stripped] = replace(known, case_sensitive=False)
        if len(values) > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} protected values")
    if not values:
        raise ValueError(f"nothing in it is {MIN_VALUE_BYTES} bytes or longer")
    return tuple(values.values())


def _texts(item: Protected, content: bytes) -> Iterator[str]:
    if len(content) > MAX_VALUES_BYTES:
        raise ValueError(f"a protected file has at most {MAX_VALUES_BYTES >> 20} MiB")
    if item.file.endswith((".jsonl", ".ndjson")):  # else each line would be one value
        raise ValueError("JSON lines are not read")
    lines = content.decode("utf-8-sig").splitlines()
    if not item.columns:
        yield from lines
        return
    rows = csv.DictReader(lines, strict=True)
    if missing := [name for name in item.columns if name not in (rows.fieldnames or ())]:
        raise ValueError(f"there is no column {missing[0]!r}")
    for row in rows:
        yield from (row[column] or "" for column in item.columns)


def read_protected(loaded: LoadedPolicy) -> tuple[KnownValue, ...]:
    """Return all that a policy protects. Raises `PolicyError`."""
    values: list[KnownValue] = []
    for item in loaded.policy.guard_rules.protect:
        try:
            content = b""
            if item.file:
                if loaded.base is None:
                    raise ValueError("a policy without a directory has no protected files")
                content = read_regular(loaded.base, item.file, MAX_VALUES_BYTES + 1)
            values += protected_values(item, content)
        except (OSError, ValueError, csv.Error) as error:
            what = f"can't be used: {getattr(error, 'strerror', None) or error}"
            hint = "a protected file is CSV or a value a line, below the policy's directory"
            where = printable(item.file) or f"guard.protect {item.id}"
            raise PolicyError(what, where=where, hint=hint if item.file else "") from error
    return tuple(values)
