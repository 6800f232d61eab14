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
# Of all together: each is several forms in the automaton, which is held in memory.
MAX_VALUES_BYTES: Final = 64 << 20


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
    """One value to look for, 10 to 4,096 bytes of UTF-8."""

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
    """Bounds; hitting one makes a scan incomplete."""

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
        if len(self.values) > MAX_VALUES:
            raise ValueError(f"{len(self.values)} known values; at most {MAX_VALUES}")
        total = 0
        for value in self.values:
            size = len(value.text.encode(errors="surrogatepass"))
            if not MIN_VALUE_BYTES <= size <= MAX_VALUE_BYTES:
                bounds = f"{MIN_VALUE_BYTES} to {MAX_VALUE_BYTES}"
                raise ValueError(f"{value.id}: {size} bytes; a known value has {bounds}")
            total += size
        if total > MAX_VALUES_BYTES:
            raise ValueError(f"known values of {total} bytes; at most {MAX_VALUES_BYTES}")

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


def protected_values(item: Protected, content: bytes | None = None) -> tuple[KnownValue, ...]:
    """Return an entry's values. Raises `PolicyError`."""
    values: dict[str, KnownValue] = {}
    for text in _texts(item, content) if item.file else (item.value,):
        stripped = text.strip()
        size = len(stripped.encode())
        if size > MAX_VALUE_BYTES:
            raise _refused(item, f"a protected value has at most {MAX_VALUE_BYTES} bytes")
        # Short ones are left out, not refused: a column of names has some.
        if size >= MIN_VALUE_BYTES and stripped not in values:
            name = f"{item.id}/{len(values) + 1}" if item.file else item.id
            known = KnownValue(id=name, text=stripped, source=ValueSource.PROTECTED)
            values[stripped] = replace(known, case_sensitive=False)
        if len(values) > MAX_VALUES:
            raise _refused(item, f"more than {MAX_VALUES} protected values")
    if not values:
        raise _refused(item, f"nothing in it is {MIN_VALUE_BYTES} bytes or longer")
    return tuple(values.values())


def _refused(item: Protected, what: str) -> PolicyError:
    hint = "a protected file is CSV or a value a line, regular, and below the policy's directory"
    where = printable(item.file) or f"guard.protect {item.id}"
    return PolicyError(what, where=where, hint=hint if item.file else "")


def _texts(item: Protected, content: bytes | None) -> Iterator[str]:
    if content is None or len(content) > MAX_VALUES_BYTES:
        raise _refused(item, f"a protected file has at most {MAX_VALUES_BYTES >> 20} MiB")
    if item.file.endswith((".jsonl", ".ndjson")):  # else each line would be one value
        raise _refused(item, "JSON lines are not read")
    try:
        text = content.decode("utf-8-sig")
        if not item.columns:
            yield from text.splitlines()
            return
        rows = csv.DictReader(text.splitlines(), strict=True)
        if missing := [name for name in item.columns if name not in (rows.fieldnames or ())]:
            raise _refused(item, f"there is no column {missing[0]!r}")
        for row in rows:
            yield from (row[column] or "" for column in item.columns)
    except (UnicodeDecodeError, csv.Error) as error:
        raise _refused(item, f"it can't be read: {error}") from error


def read_protected(loaded: LoadedPolicy) -> tuple[KnownValue, ...]:
    """Return all that a policy protects. Raises `PolicyError`."""
    values: list[KnownValue] = []
    for item in loaded.policy.guard_rules.protect:
        content = None
        if item.file:
            if loaded.base is None:
                raise _refused(item, "a policy without a directory has no protected files")
            try:
                content = read_regular(loaded.base, item.file, MAX_VALUES_BYTES + 1)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                raise _refused(item, f"the protected file can't be read: {reason}") from error
        values += protected_values(item, content)
    return tuple(values)
