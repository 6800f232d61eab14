"""The kinds of value a policy holds, as pydantic annotations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_serializer
from pydantic.annotated_handlers import GetCoreSchemaHandler
from pydantic_core import CoreSchema, ErrorDetails, ValidationError, core_schema

from belljar import units
from belljar.dataclass import dataclass
from belljar.policy.yaml_tree import Path, field_name
from belljar.units import ALL_PORTS, did_you_mean, listed, printable, quoted

# useradd's own rule; a number needs no entry in the image's /etc/passwd.
_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}|[0-9]{1,10}(:[0-9]{1,10})?", re.ASCII)
MAX_ID: Final = 0xFFFF_FFFD - 100_000  # of a microVM's guest (native/guest/agent.h)
MAX_LINE_CHARS: Final = 4096  # a reviewer reads it in one look, and a message can show it whole
MAX_TEXT_CHARS: Final = 64 * 1024  # as many as a policy file has bytes (`yaml_tree.MAX_BYTES`)
MAX_PATH_BYTES: Final = 4095  # Linux's PATH_MAX without the zero at the end
MAX_ENV_VALUE_BYTES: Final = 128 * 1024  # no program starts with a longer string (MAX_ARG_STRLEN)
_KERNELS_OWN: Final = ("/proc/", "/sys/", "/dev/")  # a file there would hide the kernel's


def expected(what: str, value: object) -> ValueError:
    """Refuse a value, which may be a secret."""
    return ValueError(f"expected {what}, got {units.kind_of(value)}")


class Strict(BaseModel):
    """Strict, frozen, no unknown fields."""

    # An unknown field is an error: a misspelt limit that is ignored would not limit. Values stay
    # out of messages, as they may be secrets.
    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True
    )


def models_of(model: type[Strict]) -> Iterator[type[Strict]]:
    yield model
    for each in model.__subclasses__():
        yield from models_of(each)


class AtError(ValueError):
    """A refusal, with a path below the checked field."""

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path


def list_of(max_count: int, *, min_count: int = 1) -> Any:  # noqa: ANN401 - pydantic's Field
    return Field(strict=False, min_length=min_count, max_length=max_count)


def amount(default: str) -> Any:  # noqa: ANN401 - pydantic's Field
    return Field(default, validate_default=True)


WORD: Final = Field(strict=False)  # of an enumeration, as a file has it


@dataclass(frozen=True, slots=True)
class FieldKind:
    """`read` raises `ValueError`; `written` is a file's type."""

    read: Callable[[object], Any]
    written: Any = str

    def __get_pydantic_core_schema__(self, _: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.read, json_schema_input_schema=handler.generate_schema(self.written)
        )


def size(least: str, most: str) -> FieldKind:
    """Return bytes from `512MiB`, or a number."""
    return _measure(least, most, "512MiB", units.parse_size, int)


def duration(least: str, most: str) -> FieldKind:
    """Return seconds from `1h30m`, or a number."""
    return _measure(least, most, "1h30m", units.parse_duration, float)


def _measure(
    least: str, most: str, example: str, parse: Callable[[str], float], number: type[int | float]
) -> FieldKind:
    def read(value: object) -> float:
        if isinstance(value, str):
            amount = parse(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            amount = value
        else:
            raise expected(f"text such as `{example}`", value)
        if not parse(least) <= amount <= parse(most):
            raise ValueError(f"{quoted(value)} is out of range: from {least} to {most}")
        return number(amount)

    return FieldKind(read)


def read_text(value: object, what: str) -> str:
    """Return text without NUL bytes. Raises `ValueError` naming `what`."""
    if not isinstance(value, str):
        raise ValueError(f"{expected(what, value)}; if it is meant as text, put it in quotes")
    if "\0" in value or units.SURROGATE.search(value):
        raise ValueError(f"{what} can't contain a NUL byte or half a character")
    return value


def checked(
    what: str, error: str, accepts: Callable[[str], object], *, convert: Callable[[str], Any] = str
) -> FieldKind:
    """Take text for which `accepts` is true."""

    def read(value: object) -> Any:  # noqa: ANN401 - the converter's type
        text = read_text(value, what)
        if not accepts(text):
            raise ValueError(f"{quoted(text)} {error}")
        return convert(text)

    return FieldKind(read)


def _read_user(value: object) -> str:
    user = str(value) if type(value) is int else read_text(value, "a user")
    ids = (int(part) for part in user.split(":") if part.isascii() and part.isdigit())
    if not _USER.fullmatch(user) or any(number > MAX_ID for number in ids):
        raise ValueError(f"{quoted(user)} is not a valid user: a name, an id to {MAX_ID}, or both")
    return user


def _paths(what: str, error: str, accepts: Callable[[str, str], bool]) -> FieldKind:
    """Take paths that `accepts` takes unchanged and normalised."""

    def read(value: object) -> str:
        text = read_text(value, what)
        path = PurePosixPath(text)
        # `PurePosixPath` keeps two slashes at the beginning, as POSIX lets them mean something else
        normal = "/" + str(path).lstrip("/") if path.is_absolute() else str(path)
        has_length = 0 < len(text.encode()) <= MAX_PATH_BYTES
        # `..` is not resolved: behind a link it would lead elsewhere than it reads.
        if not has_length or ".." in text.split("/") or not accepts(text, normal):
            raise ValueError(f"{quoted(text)} {error}, without `..`")
        return normal

    return FieldKind(read)


NAME: Final = checked(
    "a name",
    "is not a valid name: use at most 64 letters, digits, `.`, `_` and `-`, and begin with a "
    "letter or digit",
    # It begins with a letter or digit: `..`, a hidden file's name and an option are none.
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII).fullmatch,
)
USER: Final = FieldKind(_read_user, str | int)  # an integer too: YAML reads `user: 1000` as one
WORKDIR: Final = _paths(
    "a working directory",
    "is not the absolute path of a directory, as in `/home/user`",
    lambda _, path: path.startswith("/"),
)
# A whole path of a file: nothing is copied under a name that the author didn't write.
TARGET: Final = _paths(
    "a target",
    f"is not the path of a file in the cell (none is under {listed(_KERNELS_OWN)})",
    lambda text, path: (
        not text.endswith("/") and path != "." and not f"{path}/".startswith(_KERNELS_OWN)
    ),
)
# No absolute path: what a policy may copy must lie beside it, where its reviewer finds it.
SOURCE: Final = _paths(
    "a source",
    "is not a valid source: write the path of a file below the policy's directory, relative to it",
    lambda text, path: not text.startswith("/") and not text.endswith("/") and path != ".",
)
MODE: Final = checked(  # Text: a plain `0644` is a number for YAML
    "a mode",
    'is not a valid mode: write three octal digits in quotes, as in "0644" (set-user-ID, '
    "set-group-ID and sticky bits are not allowed)",
    # Without set-user-ID, set-group-ID and sticky: a policy's file gives nobody a right.
    re.compile(r"0?[0-7]{3}", re.ASCII).fullmatch,
    convert=lambda text: int(text, 8),
)
ENV_NAME: Final = checked(
    "a variable's name",
    "is not a valid name of a variable: use at most 128 letters, digits and `_`, and don't begin "
    "with a digit",
    # POSIX's names: a shell in the cell can read each of them.
    re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII).fullmatch,
)
ENV_VALUE: Final = checked(
    "a variable's value",
    f"is too long: at most {MAX_ENV_VALUE_BYTES} bytes",
    lambda text: len(text.encode()) <= MAX_ENV_VALUE_BYTES,
)
Env: TypeAlias = Annotated[  # all of it goes along with each command
    Mapping[Annotated[str, ENV_NAME], Annotated[str, ENV_VALUE]], Field(max_length=1024)
]
# Not the policy's own directory, which holds the policy and whatever lies beside it.
DIRECTORY: Final = _paths(
    "a directory",
    "is not a valid directory: write the path of one below the policy's directory, relative to it",
    lambda _, path: not path.startswith("/") and path != ".",
)
# Without line breaks or controls, it can't forge a second line of a plan or report.
LINE: Final = checked(
    "text",
    f"is not one line of printable text of at most {MAX_LINE_CHARS} characters",
    lambda text: text.strip() and len(text) <= MAX_LINE_CHARS and text.isprintable(),
)
TEXT: Final = checked(
    "text",
    f"is too long: at most {MAX_TEXT_CHARS} characters",
    lambda text: len(text) <= MAX_TEXT_CHARS,
)
# Printable ASCII, as a request line has it: no space can begin a second word.
URL_PATH: Final = checked(
    "a path",
    "is not the path of a URL, as in `/health`",
    re.compile(r"/[\x21-\x7e]{0,1023}", re.ASCII).fullmatch,
)

# What stands behind a port's slash; `tls` is HTTPS, `smtps` is mail within TLS.
PROTOCOLS: Final = ("http", "tls", "tcp", "smtp", "smtps")
# CONNECT and TRACE are no upstream's business: both lead elsewhere.
Method: TypeAlias = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
MAX_HOST_CHARS: Final = 253  # DNS's 255 bytes (RFC 1035) without the first length and the last zero
MAX_PORTS: Final = 64  # each is a listener of the gateway
MAX_NAMES: Final = 250  # of one stand-in; all are in the plan that a reviewer reads
RESOLVER_PORT: Final = 53  # the gateway answers DNS there itself, on each address
METADATA_NAMES: Final = (  # only a cell and a stand-in of kind `metadata` may have them
    *("instance-data", "instance-data.ec2.internal", "metadata", "metadata.azure.internal"),
    *("metadata.goog", "metadata.google.internal"),
)
# RFC 1035 with the underscore of service names (RFC 2782).
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
# A last label like these makes an address of the name for some clients (WHATWG URL, 3.5).
_LIKE_A_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
PROTOCOL_OF: Final = {80: "http", 443: "tls", 8443: "tls", 25: "smtp", 587: "smtp", 465: "smtps"}


def read_host(value: object) -> str:
    """Return an exact name in lower case. Raises `ValueError`."""
    if not isinstance(value, str):
        raise expected("a host name such as `shop.example`", value)
    labels = (name := value.lower()).split(".")
    if len(name) > MAX_HOST_CHARS or not all(_LABEL.fullmatch(label) for label in labels):
        form = "as in `shop.example` (`*` is allowed only as a stand-in's first label)"
        raise ValueError(f"{quoted(value)} is not a valid host name, {form}")
    # RFC 6761, 6.3: programs answer the last two themselves, without the resolver.
    if _LIKE_A_NUMBER.fullmatch(labels[-1]) or labels[-1] in ("localhost", "localdomain"):
        raise ValueError(f"{quoted(value)} is an address, or means the cell itself: write a name")
    return name


def read_pattern(value: object) -> str:
    """Raises as `read_host`, which takes no `*.`."""
    if isinstance(value, str) and value.startswith("*."):
        return f"*.{read_host(value[2:])}"
    return read_host(value)


def covers(pattern: str, name: str) -> bool:
    return name == pattern or (pattern.startswith("*.") and name.partition(".")[2] == pattern[2:])


def read_number(value: object) -> int:
    """Read a stand-in's TCP port. Raises `ValueError`."""
    if type(value) is not int or not 1 <= value <= 65535:
        raise ValueError(f"{quoted(value)} is not a port: write a number from 1 to 65535")
    if value == RESOLVER_PORT:
        raise ValueError("port 53 is reserved for the resolver")
    return value


def read_port(value: object) -> object:
    if isinstance(value, Port):
        return value
    if value == "all":  # no other kind speaks plain TCP
        return Port(number=ALL_PORTS, protocol="tcp")
    if type(value) is int:
        return Port(number=read_number(value))
    found = re.fullmatch(r"([0-9]{1,5})/(\w+)", value) if isinstance(value, str) else None
    if found is None or found[2] not in PROTOCOLS:
        form = f"write 1 to 65535, or as in `8443/tls` with {listed(PROTOCOLS)}"
        raise ValueError(f"{quoted(value)} is not a port: {form}")
    return Port(number=read_number(int(found[1])), protocol=found[2])


class Port(Strict):
    """A TCP port; protocol "" means the usual one."""

    number: int
    protocol: str = ""

    @model_serializer
    def _written(self) -> str | int:
        if self.number == ALL_PORTS:
            return "all"
        return f"{self.number}/{self.protocol}" if self.protocol else self.number


def _all_alone(ports: tuple[Port, ...]) -> tuple[Port, ...]:
    if len(ports) > 1 and any(port.number == ALL_PORTS for port in ports):
        raise ValueError("`all` can't be combined with other ports")
    return ports


HOST: Final = FieldKind(read_host)
PATTERN: Final = FieldKind(read_pattern)
PORT_NUMBER: Final = FieldKind(read_number, int)
Ports: TypeAlias = Annotated[
    tuple[Annotated[Port, BeforeValidator(read_port, json_schema_input_type=int | str)], ...],
    list_of(MAX_PORTS),
    AfterValidator(_all_alone),
]
HostNames: TypeAlias = Annotated[tuple[Annotated[str, HOST], ...], list_of(MAX_NAMES)]
Names: TypeAlias = Annotated[tuple[Annotated[str, PATTERN], ...], list_of(MAX_NAMES)]


# ---- pydantic's refusals, in the words of a policy's author


def wrong_fields(error: ValidationError) -> str:
    found = error.errors(include_url=False)
    return "; ".join(f"{field_name(path_of(each))}: {message_of(each)}" for each in found)


def path_of(error: ErrorDetails) -> Path:
    refusal, path = error.get("ctx", {}).get("error"), error["loc"]
    if path[-1:] == ("[key]",):
        path = path[:-1]
    # Pydantic puts a stand-in's kind behind its name.
    if path[:2] == ("network", "stand_ins") and len(path) > 3:
        path = (*path[:3], *path[4:])
    return (*path, *(refusal.path if isinstance(refusal, AtError) else ()))


def message_of(error: ErrorDetails) -> str:
    match error["type"]:
        case "extra_forbidden":
            known = sorted({name for each in models_of(Strict) for name in each.model_fields})
            return f"there is no such field{did_you_mean(str(error['loc'][-1]), known)}"
        case "missing":
            return "is missing"
        case "enum":
            words = re.findall("'([^']*)'", error["ctx"]["expected"])
            hint = did_you_mean(error["input"], words)
            return f"{quoted(error['input'])} is not one of {listed(words)}{hint}"
        case "tuple_type":
            return str(expected("a list", error["input"]))
        case "value_error":
            return str(error["ctx"]["error"])
        case "model_type" | "dict_type" | "mapping_type" | "model_attributes_type":
            return str(expected("a mapping of fields to values", error["input"]))
    return printable(str(error["msg"]), max_chars=200)
