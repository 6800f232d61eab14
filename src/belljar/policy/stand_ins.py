"""The kinds of stand-in a policy's network may have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias, get_args

from pydantic import Field, model_validator

from belljar.policy import fields as kinds
from belljar.policy.fields import AtError, Strict, list_of
from belljar.policy.limits import Resources, Tier
from belljar.policy.sections import IMAGE, FilesField, ResourcesField, Rights
from belljar.units import listed

MAX_WORDS: Final = 1024  # a command line; execve takes more, a reviewer doesn't
MAX_NETWORKS: Final = 16
NETWORKS: Final = (
    "Two cells that both have some, and none in common, don't reach each other. `[]`: the cell "
    "has no network device, and is reached by commands alone. Default: every cell's."
)
# Docker's names, so that a compose file's check is one here.
_TIMES: Final = "^(interval|timeout|start_period|start_interval|retries)$"
_TIME: Final = r"^[0-9]{1,9}(\.[0-9]{1,9})?s?$"
Relative: TypeAlias = Annotated[str, kinds.SOURCE]
Directory: TypeAlias = Annotated[str, kinds.DIRECTORY]
Words: TypeAlias = Annotated[tuple[Annotated[str, kinds.TEXT], ...], list_of(MAX_WORDS)]
Times: TypeAlias = Mapping[
    Annotated[str, Field(pattern=_TIMES)], Annotated[str, Field(pattern=_TIME)]
]
AnyWords: TypeAlias = Annotated[
    tuple[Annotated[str, kinds.TEXT], ...], list_of(MAX_WORDS, min_count=0)
]
CellNetworks: TypeAlias = Annotated[
    tuple[Annotated[str, kinds.NAME], ...], list_of(MAX_NETWORKS, min_count=0)
]
NetworksField: TypeAlias = Annotated[CellNetworks | None, Field(description=NETWORKS)]

# With the options of a compose file's `tmpfs`, which begin behind a colon: the path can't have one.
DIRECTORY: Final = kinds.checked(
    "a directory",
    "is none: write an absolute path, and behind a colon its `mode`, `uid` and `gid`",
    re.compile(
        r"/[^:\0]*(:(mode=[0-7]{3,5}|[ug]id=[0-9]{1,5})(,(mode=[0-7]{3,5}|[ug]id=[0-9]{1,5}))*)?"
    ).fullmatch,
)
RESTART: Final = kinds.checked(  # Docker's words of a container's restart policy, unchanged
    "a restart",
    "is none: write `no`, `always`, `unless-stopped`, `on-failure` or `on-failure:TIMES`",
    re.compile(r"no|always|unless-stopped|on-failure(:[0-9]{1,4})?").fullmatch,
)


class StandIn(Strict):
    """The usual of `protocols` comes first."""

    protocols: ClassVar[tuple[str, ...]] = ("http", "tls")
    usual_ports: ClassVar[tuple[int, ...]] = (80, 443)
    file_field: ClassVar[str] = ""  # names an author's file; the stand-in sees its directory
    directory_field: ClassVar[str] = ""  # names an author's directory
    kind: str
    """What it plays."""
    names: kinds.Names
    """Host names, exact or `*.NAME` (one more label); an exact one wins."""
    ports: kinds.Ports | None = None
    """TCP ports: NUMBER or NUMBER/PROTOCOL. Default by kind."""

    @model_validator(mode="after")
    def _speaks(self) -> StandIn:
        seen: set[int] = set()
        for index, port in enumerate(self.ports or ()):
            if port.protocol and port.protocol not in self.protocols:
                why = f"kind `{self.kind}` serves {listed(self.protocols)}, not `{port.protocol}`"
                raise AtError(why, "ports", index)
            if port.number in seen:
                raise AtError(f"port {port.number} is listed twice", "ports", index)
            seen.add(port.number)
        return self

    def spoken_ports(self) -> tuple[tuple[int, str], ...]:
        def protocol(port: kinds.Port) -> str:
            usual = kinds.PROTOCOL_OF.get(port.number, "")
            return port.protocol or (usual if usual in self.protocols else self.protocols[0])

        ports = self.ports or tuple(kinds.Port(number=number) for number in self.usual_ports)
        return tuple((port.number, protocol(port)) for port in ports)

    def own_path(self) -> tuple[str, str]:
        """Return the field, and the author's path."""
        for name in (self.file_field, self.directory_field):
            path = getattr(self, name) if name else None
            if isinstance(path, str):
                return name, path
        return "", ""

    def settings(self) -> dict[str, Any]:
        """Return the written fields as JSON values."""
        common = {"kind", "names", "ports"}
        return self.model_dump(mode="json", exclude=common, exclude_none=True)


class HttpStandIn(StandIn):
    """Routes, templates and files of the author's."""

    directory_field: ClassVar[str] = "files"
    kind: Literal["http"]
    routes: Annotated[tuple[Mapping[str, Any], ...], list_of(MAX_WORDS, min_count=0)]
    """What is answered: the first route that fits a request."""
    files: Directory | None = None
    """A directory of the files that `routes` name."""


class HarStandIn(StandIn):
    """Replays a recording."""

    file_field: ClassVar[str] = "recording"
    kind: Literal["har"]
    recording: Relative
    """The HAR file, in a directory of its own."""


class RegistryStandIn(StandIn):
    """A package registry; uploads go into a void."""

    directory_field: ClassVar[str] = "packages"
    kind: Literal["pypi", "npm", "debian"]
    packages: Directory
    """The directory of the packages."""


class GitStandIn(StandIn):
    """Git over HTTP: clones are served, pushes are recorded."""

    directory_field: ClassVar[str] = "repositories"
    kind: Literal["git"]
    repositories: Directory | None = None
    """The directory of repositories. Default: none."""


class SmtpStandIn(StandIn):
    """Accepts mail and never sends it."""

    protocols: ClassVar[tuple[str, ...]] = ("smtp", "smtps")
    usual_ports: ClassVar[tuple[int, ...]] = (25, 465, 587)

    kind: Literal["smtp"]


class MetadataStandIn(StandIn):
    """Amazon's instance metadata service, at 169.254.169.254 besides its names."""

    protocols: ClassVar[tuple[str, ...]] = ("http",)
    usual_ports: ClassVar[tuple[int, ...]] = (80,)

    kind: Literal["metadata"]
    names: Annotated[
        tuple[Annotated[str, kinds.PATTERN], ...], list_of(kinds.MAX_NAMES, min_count=0)
    ] = ()
    """Host names. Default: none, only the address."""


class OpenAiStandIn(StandIn):
    """Chat completions by the model that is evaluated."""

    kind: Literal["openai"]


class Health(Strict):
    """A command, a path, or the image's own check."""

    command: Words | None = None
    """A command in the cell, as words."""
    http: Annotated[str, kinds.URL_PATH] | None = None
    """A path, asked for at `port`."""
    port: Annotated[int, kinds.PORT_NUMBER] | None = None
    """The port of `http`."""
    image: bool | None = None
    """`true`: the image's own check; `false`: none, whatever it has."""
    times: Times | None = None
    """With `image: true`: replacements of the image's, in seconds (`2s`); `retries`: a number."""
    interval: Annotated[float, kinds.duration("100ms", "5m")] = kinds.amount("1s")
    """Between two tries."""
    timeout: Annotated[float, kinds.duration("100ms", "5m")] = kinds.amount("5s")
    """Of one try."""
    retries: Annotated[int, Field(ge=1, le=1000)] = 30
    """Tries at most."""
    within: Annotated[float, kinds.duration("1s", "1d")] | None = None
    """From the first to the last try. Default: as long as they take."""

    @model_validator(mode="after")
    def _one(self) -> Health:
        if sum(part is not None for part in (self.command, self.http, self.image)) != 1:
            raise ValueError("write exactly one of `command`, `http` (with `port`) and `image`")
        if self.times is not None and not self.image:
            raise ValueError("`times` are those of `image: true`")
        if (self.http is None) is not (self.port is None):
            raise ValueError("write both `http` and `port`, or neither")
        return self


HealthField: TypeAlias = Annotated[
    Health | None, Field(description="How it is known that it serves. Default: the image's check.")
]


class TargetStandIn(StandIn):
    """A cell of the range's own."""

    protocols: ClassVar[tuple[str, ...]] = ("tcp", "http")
    usual_ports: ClassVar[tuple[int, ...]] = ()

    names: kinds.HostNames
    """Host names, exact."""
    ports: kinds.Ports
    """TCP ports that can be reached; `[all]`: every one."""
    image: Annotated[str, IMAGE] = "default"
    """The cell's root filesystem."""
    env: kinds.Env = Field(default_factory=dict)
    """Environment variables, added to the image's."""
    user: Annotated[str, kinds.USER] | None = None
    """Who it runs as. Default the image's."""
    workdir: Annotated[str, kinds.WORKDIR] | None = None
    """Where it runs. Default the image's working directory."""
    health: HealthField = None
    tier: Annotated[Tier, kinds.WORD] | None = None
    """Only to raise the cell's tier above the range's."""
    networks: NetworksField = None
    awaits: (
        Annotated[tuple[Annotated[str, kinds.NAME], ...], list_of(kinds.MAX_NAMES, min_count=0)]
        | None
    ) = None
    """The target cells before it that must be healthy when it starts. Default: all."""
    resources: ResourcesField = Field(default=Resources(), json_schema_extra={"default": {}})
    """What the cell may consume at most."""
    rights: Rights | None = None
    """What it may do inside beyond an ordinary container's workload."""


class ServiceProgram(Strict):
    """What a service runs until it serves."""

    health: HealthField = None
    command: AnyWords | None = None
    """What runs in it; `[]`: nothing. Default the image's."""
    arguments: AnyWords | None = None
    """Behind the image's entrypoint, instead of its command."""
    directories: (
        Annotated[tuple[Annotated[str, DIRECTORY], ...], list_of(kinds.MAX_PORTS)] | None
    ) = None
    """Made, as root's with mode 0755, where the image does not have them; a mode, uid or gid
    (`/scratch:mode=1777,uid=1000`) is given to the image's, too."""
    restart: Annotated[str, RESTART] | None = None
    """When a program that ends before it is ready is started again, at most ten times: `no`,
    `always`, `unless-stopped`, `on-failure` or `on-failure:TIMES`."""
    completes: bool = False
    """Its program ends, with status 0, before what comes after it."""

    @model_validator(mode="after")
    def _one_program(self) -> Self:
        if self.command is not None and self.arguments is not None:
            raise AtError("can't be combined with `command`: leave one of them out", "arguments")
        if self.completes and self.health is not None:
            raise AtError("can't be combined with `completes: true`", "health")
        return self


class CellStandIn(ServiceProgram, TargetStandIn):
    """A cell of an image and a command."""

    kind: Literal["cell"]
    files: FilesField = ()
    """Files that are copied in."""


class PythonStandIn(TargetStandIn):
    """An ASGI app, run in a cell."""

    directory_field: ClassVar[str] = "files"
    kind: Literal["python"]
    app: Annotated[
        str,
        kinds.checked(
            "an app",
            "is not an app: write a module and a name in it: `shop.main:app`",
            # As gunicorn and uvicorn name an application.
            re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII).fullmatch,
        ),
    ]
    """The app as `module:name`, as in `shop.main:app`."""
    files: Directory
    """The directory of the app's modules; it is copied into the cell."""


AnyStandIn: TypeAlias = Annotated[
    HttpStandIn
    | HarStandIn
    | PythonStandIn
    | CellStandIn
    | RegistryStandIn
    | GitStandIn
    | SmtpStandIn
    | MetadataStandIn
    | OpenAiStandIn,
    Field(discriminator="kind"),
]
# `network` looks a `kind` up here before pydantic does, to suggest the nearest word.
MODELS: Final[Mapping[str, type[StandIn]]] = {
    kind: model
    for model in get_args(get_args(AnyStandIn)[0])
    for kind in get_args(model.model_fields["kind"].annotation)
}
