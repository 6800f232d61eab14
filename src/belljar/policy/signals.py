"""The blocks `decoys`, `guard` and `on` of a policy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from belljar.policy import fields as kinds
from belljar.policy import hosts
from belljar.policy.fields import AtError, Strict, list_of
from belljar.policy.guarding import (
    ACTIONS,
    DEFAULT_ACTIONS,
    GUARD_CLASSES,
    LOGIN_SERVICES,
    SERVICE_PORTS,
    SERVICE_ROWS,
    STANDARD_DECOYS,
    Action,
    DecoyKind,
    DecoySpec,
    GuardRules,
    Place,
    Protected,
    Stop,
    Trigger,
)
from belljar.units import listed, quoted

# Each is minted, placed and watched before a sample begins.
MAX_DECOYS: Final = 64
MAX_COUNT: Final = 1000
MAX_PROTECTED: Final = 64
MAX_COLUMNS: Final = 64
STANDARD: Final = "standard"
NONE: Final = "none"


def _read_place(value: object) -> str:
    text = str(kinds.LINE.read(value))
    if not text.startswith(("/", "~/")):
        name, colon, port = text.partition(":")
        is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 1 << 16
        if "/" in name or (colon and (not is_port or int(port) == hosts.RESOLVER_PORT)):
            why = "is no absolute path of a file or one below `~/`, and no service's `name:port`"
            raise ValueError(f"{quoted(text)} {why}")
        return f"{hosts.read_host(name)}{colon}{port}"
    if ".." in text.split("/") or text.endswith("/"):
        raise ValueError(f"{quoted(text)} is not the path of a file")
    return text


Id: TypeAlias = Annotated[
    str,
    kinds.checked(
        "an id",
        "is not a valid id: use at most 32 lower-case letters, digits, `_` and `-`",
        # It is part of paths and of names in the cell.
        re.compile(r"[a-z0-9][a-z0-9_-]{0,31}", re.ASCII).fullmatch,
    ),
]


# Files that can hold the login of a service.
_COMPANIONS: Final = frozenset({DecoyKind.DOTENV, DecoyKind.TEXT, DecoyKind.SSH_KEY})


class DecoyText(Strict):
    """A decoy: a file, or a service of the range, that looks valuable and holds values made for one
    sample alone."""

    id: Id = Field(description="Names it in events.")
    kind: Annotated[DecoyKind, kinds.choice(DecoyKind)] = Field(
        description="What it pretends to be."
    )
    place: Annotated[str, kinds.FieldKind(_read_place)] = Field(
        default="",
        description="Its path in the cell (`~/` is the user's home; default the kind's usual "
        "place), or a service's host name or NAME:PORT.",
    )
    count: Annotated[int, Field(ge=1, le=MAX_COUNT)] = Field(
        default=1, description="How many records it has, where its kind holds several."
    )
    template: Annotated[str, kinds.TEXT] = Field(
        default="",
        description="Of a `text`: what it says; `{secret}` becomes a value of its own. With "
        "`service` also `{url}`, `{host}`, `{port}`, `{user}`, `{password}`.",
    )
    service: Id = Field(
        default="",
        description="Of a `dotenv` or `text`: the decoy service whose login it holds; of an "
        "`ssh_key`: an `ssh`.",
    )

    @model_validator(mode="after")
    def _fits_its_kind(self) -> DecoyText:
        is_service, is_text = self.kind in SERVICE_PORTS, self.kind is DecoyKind.TEXT
        has_host = bool(self.place) and not self.place.startswith(("/", "~/"))
        # A metadata service is at its address.
        if (is_service and self.kind is not DecoyKind.METADATA) != has_host or (
            self.kind is DecoyKind.METADATA and self.place
        ):
            why = "write a host name for a service (none for `metadata`), and a path for a file"
            raise AtError(why, "place")
        if self.service and self.kind not in _COMPANIONS:
            able = listed(sorted(_COMPANIONS))
            raise AtError(f"only {able} can have the login of a service", "service")
        if is_text != bool(self.template) or (is_text and not self.place):
            raise AtError("`template` and `place` are needed for kind `text` alone", "template")
        secrets = ("{secret}", *(("{password}", "{url}") if self.service else ()))
        if is_text and not any(secret in self.template for secret in secrets):
            raise AtError("must contain `{secret}`, to be recognised", "template")
        if self.kind in LOGIN_SERVICES and "count" in self.model_fields_set:
            raise AtError("leave it out: this decoy has no rows; it logs in and refuses", "count")
        return self

    def spec(self) -> DecoySpec:
        """The same for the program."""
        spec = DecoySpec(**self.model_dump())
        has_rows = spec.is_service and spec.kind not in LOGIN_SERVICES
        if has_rows and "count" not in self.model_fields_set:
            return replace(spec, count=SERVICE_ROWS)
        return spec


def _read_decoys(value: object) -> object:
    if value is None or value == NONE:
        return ()
    if value == STANDARD:
        value = STANDARD_DECOYS
    if not isinstance(value, list | tuple) or len(value) > MAX_DECOYS:
        raise ValueError(f"expected `{STANDARD}`, `{NONE}` or a list of at most {MAX_DECOYS}")
    return tuple(_written_decoy(each) if isinstance(each, DecoySpec) else each for each in value)


def _specs(decoys: tuple[DecoyText, ...]) -> tuple[DecoySpec, ...]:
    seen: set[str] = set()
    services = {decoy.id: decoy.kind for decoy in decoys if decoy.kind in SERVICE_PORTS}
    for index, decoy in enumerate(decoys):
        if decoy.id in seen:
            raise AtError(f"{quoted(decoy.id)} is already the id of another decoy", index, "id")
        seen.add(decoy.id)
        # Only a server of that kind has a key for a key's file to hold.
        able = {DecoyKind.SSH} if decoy.kind is DecoyKind.SSH_KEY else SERVICE_PORTS.keys()
        if decoy.service and services.get(decoy.service) not in able:
            why = f"{quoted(decoy.service)} is not the id of a decoy service that can have it"
            raise AtError(why, index, "service")
    return tuple(decoy.spec() for decoy in decoys)


def _written_decoy(spec: DecoySpec) -> dict[str, Any]:
    written = {name: getattr(spec, name) for name in DecoyText.model_fields}
    return {
        name: value
        for name, value in (written | {"kind": spec.kind.value}).items()
        if value != DecoyText.model_fields[name].default
    }


class ProtectedText(Strict):
    """Data that may not leave."""

    id: Id = Field(description="Names it in events.")
    file: Annotated[str, kinds.SOURCE] = Field(
        default="", description="A file below the policy's directory: CSV, or one value a line."
    )
    columns: Annotated[
        tuple[Annotated[str, kinds.LINE], ...], list_of(MAX_COLUMNS, min_count=0)
    ] = Field(default=(), description="Columns of a CSV file whose values are looked for.")
    value: Annotated[str, kinds.LINE] = Field(default="", description="One value.")

    @model_validator(mode="after")
    def _one_of_both(self) -> ProtectedText:
        if bool(self.file) == bool(self.value):
            raise AtError("write exactly one of `file` and `value`", "file")
        if self.columns and not self.file:
            raise AtError("is only allowed with `file`", "columns")
        return self


def _check_actions(actions: Mapping[Place, Action]) -> Mapping[Place, Action]:
    """Refuse an action that its place can't have."""
    for place, action in actions.items():
        if action not in ACTIONS[place]:
            words = listed(word.value for word in ACTIONS[place])
            raise AtError(f"{quoted(action.value)} is not one of {words}", place.value)
    return actions


class GuardText(Strict):
    """What the egress guard looks for and does."""

    protect: Annotated[tuple[ProtectedText, ...], list_of(MAX_PROTECTED, min_count=0)] = Field(
        default=(), description="Data of your own that may not leave."
    )
    classes: Annotated[
        tuple[Literal["card", "iban", "email"], ...], list_of(len(GUARD_CLASSES), min_count=0)
    ] = Field(
        default=(),
        description="Personal data that is looked for. Credentials, private keys and seed "
        "phrases always are.",
    )
    action: Annotated[
        Mapping[Annotated[Place, kinds.choice(Place)], Annotated[Action, kinds.choice(Action)]],
        AfterValidator(_check_actions),
    ] = Field(
        default_factory=dict,
        description="What becomes of what is found. In `range` (sent within the range) and "
        "`upstream` (to a real service): flag, block, stop. In `output` (taken out of a cell) and "
        "`model` (to the model's provider): flag, redact, stop.",
        json_schema_extra={"default": {}},
    )

    def rules(self) -> GuardRules:
        """The same for the program."""
        return GuardRules(
            protect=tuple(Protected(**item.model_dump()) for item in self.protect),
            classes=self.classes,
            actions={**DEFAULT_ACTIONS, **self.action},
        )


def _written_guard(rules: GuardRules | None) -> Any:  # noqa: ANN401 - JSON values
    if rules is None:
        return None
    return {
        "protect": [
            {name: value for name, value in asdict(item).items() if value} for item in rules.protect
        ],
        "classes": rules.classes,
        "action": {place.value: rules.action(place).value for place in Place},
    }


if TYPE_CHECKING:
    DecoysField: TypeAlias = tuple[DecoySpec, ...]
    GuardField: TypeAlias = GuardRules | None
    StopsField: TypeAlias = Mapping[Trigger, Stop]
else:
    DecoysField = Annotated[
        tuple[DecoyText, ...],
        BeforeValidator(
            _read_decoys, json_schema_input_type=Literal["none", "standard"] | list[DecoyText]
        ),
        AfterValidator(_specs),
        PlainSerializer(
            lambda specs: (
                STANDARD
                if specs == STANDARD_DECOYS
                else [_written_decoy(spec) for spec in specs] or NONE
            ),
            return_type=Literal["none", "standard"] | list[dict[str, Any]],
        ),
    ]
    GuardField = Annotated[
        GuardText | None,
        BeforeValidator(
            lambda value: _written_guard(value) if isinstance(value, GuardRules) else value,
            json_schema_input_type=GuardText | None,
        ),
        AfterValidator(lambda text: None if text is None else text.rules()),
        PlainSerializer(_written_guard, return_type=dict[str, Any] | None),
    ]
    StopsField = Annotated[
        Mapping[Annotated[Trigger, kinds.choice(Trigger)], Annotated[Stop, kinds.choice(Stop)]],
        PlainSerializer(
            lambda stops: {trigger.value: stop.value for trigger, stop in stops.items()},
            return_type=dict[str, str],
        ),
    ]
