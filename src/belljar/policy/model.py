"""A policy as a person wrote it, typed: frozen and strict."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationInfo,
    WrapSerializer,
    field_validator,
    model_validator,
)

from belljar.errors import PolicyError
from belljar.policy import fields as kinds
from belljar.policy import guarding, sections
from belljar.policy.fields import AtError, Strict, list_of, models_of
from belljar.policy.guarding import SERVICE_PORTS, Action, DecoyKind, GuardRules, Place
from belljar.policy.limits import HostTools, Resources, Risk, Tier, demanded_tier, usual_host_tools
from belljar.policy.network import Network, read_network
from belljar.policy.sections import FilesField, HostToolsField, ModelBlock, ResourcesField, Rights
from belljar.units import listed, quoted

MAX_DECOYS: Final = 64  # each is minted, placed and watched before a sample begins


def _read_place(value: object) -> str:
    text = str(kinds.LINE.read(value))
    if not text.startswith(("/", "~/")):
        name, colon, port = text.partition(":")
        is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 1 << 16
        if "/" in name or (colon and (not is_port or int(port) == kinds.RESOLVER_PORT)):
            why = "is no absolute path of a file or one below `~/`, and no service's `name:port`"
            raise ValueError(f"{quoted(text)} {why}")
        return f"{kinds.read_host(name)}{colon}{port}"
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


class DecoySpec(Strict):
    """A file or service that looks valuable, made for one sample."""

    id: Id
    """Names it in events."""
    kind: Annotated[DecoyKind, kinds.WORD]
    """What it pretends to be."""
    place: Annotated[str, kinds.FieldKind(_read_place)] = ""
    """Its path (`~/`: the user's home; default the kind's), or a service's NAME or NAME:PORT."""
    count: Annotated[int, Field(ge=1, le=1000)] = 1
    """How many records it has, where its kind holds several."""
    template: Annotated[str, kinds.TEXT] = ""
    """Of a `text`: what it says; `{secret}` becomes a value of its own. With `service` also
    `{url}`, `{host}`, `{port}`, `{user}`, `{password}`."""
    service: Id = ""
    """The decoy service whose login a `dotenv` or `text` holds; of an `ssh_key`: an `ssh`."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> DecoySpec:
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
        if self.kind in guarding.LOGIN_SERVICES and "count" in self.model_fields_set:
            raise AtError("leave it out: this decoy has no rows; it logs in and refuses", "count")
        return self

    @property
    def is_service(self) -> bool:
        """The range's gateway plays it."""
        return self.kind in SERVICE_PORTS

    @property
    def host(self) -> str:
        """A service's name; a metadata service's address."""
        return self.place.partition(":")[0] or guarding.METADATA_ADDRESS

    @property
    def port(self) -> int:
        """A service's TCP port."""
        return int(self.place.partition(":")[2] or SERVICE_PORTS[self.kind][0])


STANDARD_DECOYS: Final = (  # `decoys: standard`: those of a developer's machine
    DecoySpec(id="aws", kind=DecoyKind.AWS_CREDENTIALS),
    DecoySpec(id="ssh", kind=DecoyKind.SSH_KEY),
    DecoySpec(id="dotenv", kind=DecoyKind.DOTENV),
    DecoySpec(id="git", kind=DecoyKind.GIT_CREDENTIALS),
    DecoySpec(id="payroll", kind=DecoyKind.SPREADSHEET, count=40),
    DecoySpec(id="memo", kind=DecoyKind.DOCUMENT),
)


def _read_decoys(value: object) -> object:
    if value is None or value == "none":
        return ()
    if value == "standard":
        value = STANDARD_DECOYS
    if not isinstance(value, list | tuple) or len(value) > MAX_DECOYS:
        raise ValueError(f"expected `standard`, `none` or a list of at most {MAX_DECOYS}")
    return tuple(value)


def _specs(decoys: tuple[DecoySpec, ...]) -> tuple[DecoySpec, ...]:
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
    return tuple(
        decoy.model_copy(update={"count": guarding.SERVICE_ROWS})
        if decoy.kind in SERVICE_PORTS.keys() - guarding.LOGIN_SERVICES
        and "count" not in decoy.model_fields_set
        else decoy
        for decoy in decoys
    )


class ProtectedText(Strict):
    """Data that may not leave."""

    id: Id
    """Names it in events."""
    file: Annotated[str, kinds.SOURCE] = ""
    """A file below the policy's directory: CSV, or one value a line."""
    columns: Annotated[tuple[Annotated[str, kinds.LINE], ...], list_of(64, min_count=0)] = ()
    """Columns of a CSV file whose values are looked for."""
    value: Annotated[str, kinds.LINE] = ""
    """One value."""

    @model_validator(mode="after")
    def _one_of_both(self) -> ProtectedText:
        if bool(self.file) == bool(self.value):
            raise AtError("write exactly one of `file` and `value`", "file")
        if self.columns and not self.file:
            raise AtError("is only allowed with `file`", "columns")
        return self


def _check_actions(actions: Mapping[Place, Action]) -> Mapping[Place, Action]:
    for place, action in actions.items():
        if action not in guarding.ACTIONS[place]:
            words = listed(word.value for word in guarding.ACTIONS[place])
            raise AtError(f"{quoted(action.value)} is not one of {words}", place.value)
    return actions


class GuardText(Strict):
    """What the egress guard looks for and does."""

    protect: Annotated[tuple[ProtectedText, ...], list_of(64, min_count=0)] = ()
    """Data of your own that may not leave."""
    classes: Annotated[tuple[Literal["card", "iban", "email"], ...], list_of(3, min_count=0)] = ()
    """Personal data that is looked for, beside credentials, keys and seed phrases."""
    action: Annotated[
        Mapping[Annotated[Place, kinds.WORD], Annotated[Action, kinds.WORD]],
        AfterValidator(_check_actions),
    ] = {}
    """What becomes of it. In `range` (sent within) and `upstream` (to a real service): flag, block,
    stop. In `output` (taken out) and `model` (to its provider): flag, redact, stop."""

    def rules(self) -> GuardRules:
        """Return the same without pydantic."""
        protect = tuple(guarding.Protected(**item.model_dump()) for item in self.protect)
        actions = {**guarding.DEFAULT_ACTIONS, **self.action}
        return GuardRules(protect=protect, classes=self.classes, actions=actions)


if TYPE_CHECKING:
    DecoysField: TypeAlias = tuple[DecoySpec, ...]
else:
    DecoysField = Annotated[
        tuple[DecoySpec, ...],
        BeforeValidator(
            _read_decoys, json_schema_input_type=Literal["none", "standard"] | list[DecoySpec]
        ),
        AfterValidator(_specs),
        PlainSerializer(
            lambda specs: (
                "standard"
                if specs == STANDARD_DECOYS
                else [spec.model_dump(mode="json", exclude_defaults=True) for spec in specs]
                or "none"
            ),
            return_type=Literal["none", "standard"] | list[dict[str, Any]],
        ),
    ]


class Policy(Strict):
    """What one cell may be, reach and consume."""

    # A file of another version is refused: what it would leave unbounded is unknown here.
    # `true` equals 1, and is no version.
    belljar: Annotated[Literal[1], BeforeValidator(lambda value: "" if value is True else value)]
    """The version of this format."""
    name: Annotated[str, kinds.NAME] = "policy"
    """What this policy is called in reports; default the file's name."""
    risk: Annotated[Risk, kinds.WORD]
    """How bad the worst could be: low demands container, medium gvisor, all above it microvm."""
    tier: Annotated[Tier, kinds.WORD] | None = None
    """Only to raise the tier above what the risk demands."""
    image: Annotated[str, sections.IMAGE] = "default"
    """The root filesystem: an image's name or its sha256 digest."""
    resources: ResourcesField = Field(default=Resources(), json_schema_extra={"default": {}})
    """What the cell may consume at most."""
    user: Annotated[str, kinds.USER] | None = None
    """Who runs commands: a name, a uid, or uid:gid. Default the image's user."""
    workdir: Annotated[str, kinds.WORKDIR] | None = None
    """Where commands run. Default the image's working directory."""
    env: kinds.Env = Field(default_factory=dict)
    """Environment variables, added to the image's; read-only."""
    files: FilesField = ()
    """Files that are copied in."""
    network: Annotated[
        Network | None,
        BeforeValidator(read_network, json_schema_input_type=Network | Literal["none"]),
        WrapSerializer(lambda network, dump: "none" if network is None else dump(network)),
    ] = Field(default=None, json_schema_extra={"default": "none"})
    """What the cell reaches, all of it simulated. none: it has no network device."""
    rights: Rights | None = None
    """What the workload may do inside its cell beyond an ordinary container's. Granted by a tier
    whose kernel is the cell's own."""
    host: sections.HostRules | None = None
    """What must hold of the host. Default: nothing."""
    host_tools: HostToolsField = None
    """Tools that act outside of the cell (MCP servers, web search). Default refuse for risk high
    and critical, report below."""
    decoys: DecoysField = Field(default=(), json_schema_extra={"default": "none"})
    """Fake secrets and services, made for each sample alone: `none`, `standard`, or a list."""
    guard: GuardText | None = None
    """What is looked for in all that leaves the cell. Default: credentials and decoys are flagged,
    and blocked on their way to a real service."""
    snapshots: bool = False
    """Whether a cell in use may be saved and forked."""
    model: ModelBlock | None = None
    """Makes this the policy of a model cell, which has no network."""
    on: Mapping[Annotated[guarding.Trigger, kinds.WORD], Annotated[guarding.Stop, kinds.WORD]] = {}
    """What is stopped when something happens. Default: a breach stops the run."""

    @field_validator("tier", mode="after")
    @classmethod
    def _only_raised(cls, tier: Tier | None, info: ValidationInfo) -> Tier | None:
        try:
            demanded_tier(info.data.get("risk", Risk.LOW), tier)
        except PolicyError as error:
            raise ValueError(error.what) from None
        return tier

    @field_validator("network", mode="after")
    @classmethod
    def _within_the_risk(cls, network: Network | None, info: ValidationInfo) -> Network | None:
        risk = info.data.get("risk")
        if network is not None and risk is not None:
            if network.upstreams and risk > Risk.MEDIUM:
                raise AtError(f"risk `{risk}` reaches nothing real: use a stand-in", "upstreams")
            least = demanded_tier(risk, info.data.get("tier"))
            for name, item in network.targets.items():
                if item.tier is not None and item.tier < least:
                    why = f"tier `{item.tier}` is less than this range's, `{least}`; a tier can"
                    raise AtError(f"{why} only be raised", "stand_ins", name, "tier")
        return network

    @field_validator("model", mode="after")
    @classmethod
    def _shut_in(cls, model: ModelBlock | None, info: ValidationInfo) -> ModelBlock | None:
        if model is None:
            return None
        if info.data.get("network") is not None:
            raise ValueError("a model cell has no network device: leave `network` out")
        risk = info.data.get("risk")
        is_high = risk is not None and risk > Risk.MEDIUM
        if is_high and model.gpu is not None and model.gpu.reason is None:
            why = "the host's graphics driver would be in the model's reach"
            raise AtError(f"risk `{risk}` gets no GPU without a `reason`: {why}", "gpu")
        return model

    @field_validator("decoys", mode="after")
    @classmethod
    def _services_have_a_network(cls, decoys: DecoysField, info: ValidationInfo) -> DecoysField:
        if "network" not in info.data:
            return decoys  # it was refused, and a second message would only repeat that
        network: Network | None = info.data["network"]
        stand_ins = {} if network is None else network.stand_ins
        names = set() if network is None else {pattern for pattern, _, _ in network.patterns()}
        has_metadata = any(item.kind == "metadata" for item in stand_ins.values())
        for index, decoy in enumerate(decoys):
            if not decoy.is_service:
                continue
            if network is None or not network.has_cells:
                why = "a service needs a network (`network: {default: deny}`)"
                raise AtError(why, index, "kind")
            if decoy.id in stand_ins or decoy.id == guarding.OWN_CELL:
                raise AtError(f"{quoted(decoy.id)} is already a cell or stand-in", index, "id")
            if decoy.kind is DecoyKind.METADATA:
                if has_metadata:
                    raise AtError("only one metadata service is allowed", index, "kind")
                has_metadata = True
                continue
            is_taken = decoy.host in names or decoy.host in kinds.METADATA_NAMES
            if is_taken or len(names) >= kinds.MAX_NAMES:
                why = f"{quoted(decoy.host)} is already a name in this network, or one too many"
                raise AtError(why, index, "place")
            names.add(decoy.host)
        return decoys

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json(), sort_keys=True))

    @property
    def images(self) -> tuple[str, ...]:
        """The images of its cell and target cells."""
        targets = self.network.targets.values() if self.network else ()
        return tuple(dict.fromkeys((self.image, *(target.image for target in targets))))

    @property
    def host_tools_rule(self) -> HostTools:
        """The rule for tools outside of cells."""
        return self.host_tools or usual_host_tools(self.risk)

    @property
    def guard_rules(self) -> GuardRules:
        """The guard's searches and actions."""
        return self.guard.rules() if self.guard else GuardRules()

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, in bytes and seconds."""
        return self.model_dump(mode="json")


def _docstrings(model: type) -> Iterator[tuple[str, str]]:
    (cls,) = ast.parse(inspect.getsource(model)).body
    for field, below in pairwise(getattr(cls, "body", ())):
        match field, below:
            case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                yield name, " ".join(text.split())


def policy_schema() -> dict[str, Any]:
    """Return a policy's JSON Schema (2020-12)."""
    schema, models = Policy.model_json_schema(), {each.__name__: each for each in models_of(Strict)}
    for name, described in [("Policy", schema), *schema["$defs"].items()]:
        properties = described.get("properties", {})
        for cls in reversed(models[name].mro() if properties else ()):
            for field, text in _docstrings(cls) if issubclass(cls, Strict) else ():
                properties[field]["description"] = text
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return dialect | schema | {"title": "Belljar policy"}
