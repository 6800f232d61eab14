"""Decoy values from a run's key. Pure: the same key, cell and decoy give the same values, and
others give others, so that a value seen later names its run, sample and decoy.
"""

from __future__ import annotations

import hashlib
import hmac
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, TypeVar

from belljar.dataclass import dataclass
from belljar.policy.guarding import DecoySpec
from belljar.signals.values import KnownValue, Source

KEY_BYTES: Final = 32
ALNUM: Final = string.ascii_letters + string.digits
DAY_S: Final = 86_400
MAX_AGE_DAYS: Final = 90
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MintedFile:
    """A file of a decoy. `age_s`: how much older it is than what is at its place."""

    path: str
    content: bytes = field(repr=False)
    mode: int = 0o644
    age_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SshLogin:
    """Keys of an SSH server, as raw bytes.

    `seed`: the login's; `host_key`: the host's public one.
    """

    seed: bytes = field(repr=False)
    host_key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How a service is entered, as a file that holds its login says it.

    Attributes:
        env: lines of an environment file: names and values.
        ssh: of an SSH server.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    url: str = field(repr=False)
    env: Mapping[str, str] = field(repr=False)
    ssh: SshLogin | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MintedService:
    """A service of a decoy.

    `settings`: what the range's gateway is handed for it, as JSON values.
    """

    login: Login
    settings: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Minted:
    """One decoy of one cell: its files, or its service, and the values in them that exist nowhere
    else.
    """

    id: str
    kind: str
    cell_id: str
    place: str
    files: tuple[MintedFile, ...] = ()
    service: MintedService | None = None
    values: tuple[KnownValue, ...]


class Stream:
    """Bytes that nobody without the key can tell from random ones: HMAC-SHA256 in counter mode."""

    def __init__(self, key: bytes, label: str) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key of {len(key)} bytes; it has {KEY_BYTES}")
        self._key = hmac.digest(key, label.encode(), hashlib.sha256)
        self._counter = 0
        self._rest = b""

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        while len(self._rest) < count:
            self._rest += hmac.digest(self._key, self._counter.to_bytes(8, "big"), hashlib.sha256)
            self._counter += 1
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken

    def below(self, bound: int) -> int:
        """A number from 0 to `bound` - 1, each as likely as another but for 2^-64."""
        return int.from_bytes(self.take(8 + (bound.bit_length() + 7) // 8), "big") % bound

    def pick(self, choices: Sequence[_T]) -> _T:
        """One of them."""
        return choices[self.below(len(choices))]

    def text(self, count: int, alphabet: str = ALNUM) -> str:
        """So many characters of an alphabet."""
        return "".join(self.pick(alphabet) for _ in range(count))


def mint(
    key: bytes,
    cell_id: str,
    decoy: DecoySpec,
    *,
    home: str = "/root",
    login: Login | None = None,
) -> Minted:
    """The decoy's files and values for one cell.

    Args:
        home: of the cell's user, for places that begin with `~/`. No value depends on it.
        login: of the service that the decoy names; its values are the service's, not the file's.
    """
    from belljar.signals.kinds import DRAW, DRAW_WITH_LOGIN, PLACES

    stream = Stream(key, _label(cell_id, decoy))
    place = decoy.place or PLACES[decoy.kind]
    if place.startswith("~/"):
        place = f"{home.rstrip('/')}{place[1:]}"
    drawn = (
        DRAW[decoy.kind](stream, place, decoy)
        if login is None
        else DRAW_WITH_LOGIN[decoy.kind](stream, place, decoy, login)
    )
    age_s = DAY_S + stream.below(MAX_AGE_DAYS * DAY_S)
    files = tuple(  # a program makes the first two at once: a key pair, credentials and settings
        MintedFile(
            path=path,
            content=content,
            mode=mode,
            age_s=age_s - (stream.below(DAY_S) if index > 1 else 0),
        )
        for index, (path, content, mode) in enumerate(drawn.files)
    )
    return Minted(
        id=decoy.id,
        kind=decoy.kind.value,
        cell_id=cell_id,
        place=files[0].path,
        files=files,
        values=_values(decoy, drawn.values),
    )


def mint_service(key: bytes, scope: str, decoy: DecoySpec) -> Minted:
    """The decoy's service for one range.

    `scope`: stands for the cell, which there is none of yet.
    """
    from belljar.signals.services import DRAW_SERVICE

    service, values = DRAW_SERVICE[decoy.kind](Stream(key, _label(scope, decoy)), decoy)
    return Minted(
        id=decoy.id,
        kind=decoy.kind.value,
        cell_id=scope,
        place=f"{decoy.host}:{decoy.port}",
        service=service,
        values=_values(decoy, values),
    )


def _label(cell_id: str, decoy: DecoySpec) -> str:
    return f"decoy\0{cell_id}\0{decoy.id}\0{decoy.kind.value}"


def _values(decoy: DecoySpec, named: Mapping[str, str]) -> tuple[KnownValue, ...]:
    kind = f"decoy_{decoy.kind.value}"
    return tuple(
        KnownValue(id=f"{decoy.id}/{name}", text=text, source=Source.DECOY, kind=kind)
        for name, text in named.items()
    )


def digests(key: bytes, minted: Minted) -> Mapping[str, str]:
    """Each value's id → its keyed digest, for the record, where the value itself never stands."""
    return {value.id: digest(key, value.text) for value in minted.values}


def digest(key: bytes, text: str) -> str:
    """HMAC-SHA256 of a value, in hex, by a key of its own that the run's key gives."""
    return hmac.new(
        Stream(key, "digest").take(KEY_BYTES), text.encode(), hashlib.sha256
    ).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a value was minted for. `value`: its id."""

    cell_id: str
    decoy: str
    value: str


def origins(placed: Iterable[tuple[str, str, Mapping[str, str]]]) -> dict[str, Origin]:
    """Of each digest the value that it belongs to.

    Args:
        placed: of each `decoy.placed` of the run its cell, decoy and digests by value id.
    """
    return {
        known: Origin(cell_id=cell_id, decoy=decoy, value=value_id)
        for cell_id, decoy, by_id in placed
        for value_id, known in by_id.items()
    }
