"""What the guard's scanner looks for, and what it reports.

JSON both ways; never a value in a repr.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field
from enum import StrEnum
from typing import Any, Final

from belljar.dataclass import dataclass

MIN_VALUE_BYTES: Final = 10
"""A shorter one would be found in what has nothing to do with it."""
MAX_VALUE_BYTES: Final = 4096
MAX_VALUES: Final = 100_000
MAX_VALUES_BYTES: Final = 64 << 20
MIN_KEY_BYTES: Final = 16


class Source(StrEnum):
    """Where a known value comes from."""

    DECOY = "decoy"
    PROTECTED = "protected"
    FOREIGN = "foreign"
    """A decoy of another sample: seen here, it was carried over."""


class Channel(StrEnum):
    """How data travels; with it, what borders a stream has."""

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
    """One value that is looked for.

    Attributes:
        id: names it in events, where the value itself never stands.
        text: the value; 10 to 4,096 bytes of UTF-8.
        source: whose it is.
        kind: its class in a hit; "" is the source's word.
        case_sensitive: with False, another case is the value itself; else it is reported as an
            encoding (`case`).
    """

    id: str
    text: str = field(repr=False)
    source: Source
    kind: str = ""
    case_sensitive: bool = True

    @property
    def cls(self) -> str:
        """The class that a hit of it has."""
        return self.kind or self.source.value

    def to_json(self) -> dict[str, Any]:
        """As JSON values; this holds the value itself."""
        return asdict(self) | {"source": self.source.value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KnownValue:
        """The reverse of `to_json`."""
        return cls(**{**data, "source": Source(data["source"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanBounds:
    """What one scan may cost. Data beyond a bound is not scanned, and the result says so."""

    depth: int = 5
    decoded_bytes: int = 16 << 20
    time_s: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSpec:
    """Everything a scanner needs.

    Attributes:
        values: known values.
        classes: personal data that is looked for; credentials always are.
        key_hex: the key of digests.
        bounds: what a scan may cost.
    """

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
                raise ValueError(
                    f"{value.id}: {size} bytes; a known value has {MIN_VALUE_BYTES} to "
                    f"{MAX_VALUE_BYTES}"
                )
            total += size
        if total > MAX_VALUES_BYTES:
            raise ValueError(f"known values of {total} bytes; at most {MAX_VALUES_BYTES}")
        if len(bytes.fromhex(self.key_hex)) < MIN_KEY_BYTES:
            raise ValueError(f"a digest key has at least {MIN_KEY_BYTES} bytes")

    def digest(self, found: bytes) -> str:
        """HMAC-SHA256 of a value, in hex: tells whether two are the same without telling either."""
        return hmac.digest(bytes.fromhex(self.key_hex), found, "sha256").hex()

    def to_json(self) -> dict[str, Any]:
        """As JSON values; this holds values and key."""
        return {
            "values": [value.to_json() for value in self.values],
            "classes": list(self.classes),
            "key_hex": self.key_hex,
            "bounds": asdict(self.bounds),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ScanSpec:
        """The reverse of `to_json`."""
        return cls(
            values=tuple(KnownValue.from_json(value) for value in data["values"]),
            classes=tuple(data["classes"]),
            key_hex=data["key_hex"],
            bounds=ScanBounds(**data["bounds"]),
        )


def spec_of(
    protected: Iterable[KnownValue],
    classes: Iterable[str],
    decoys: Iterable[KnownValue],
    key: bytes,
    bounds: ScanBounds | None = None,
) -> ScanSpec:
    """What a policy and a sample's decoys make the scanner look for; of equal values the first."""
    chosen: dict[str, KnownValue] = {}
    for value in (*decoys, *protected):
        chosen.setdefault(value.text, value)
    return ScanSpec(
        values=tuple(chosen.values()),
        classes=tuple(dict.fromkeys(classes)),
        key_hex=key.hex(),
        bounds=bounds or ScanBounds(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """Something found.

    Attributes:
        cls: `card`, `aws_key`, …; of a known value its kind or source.
        value_id: of a known value, else "".
        source: decoy, protected, foreign; of a pattern `pattern`.
        start, end: of the outermost data.
        decoding: what had to be undone, outermost first: ("base64", "gzip").
        digest: of the value (`ScanSpec.digest`): of a known value as it was given, else as found.
    """

    cls: str
    value_id: str
    source: str
    start: int
    end: int
    decoding: tuple[str, ...]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """The result of one scan. `complete` False: a bound was hit, and `problem` says which."""

    hits: tuple[Hit, ...] = ()
    complete: bool = True
    problem: str = ""
