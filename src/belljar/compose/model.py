"""What cells can keep of a compose file, as pydantic models. Pure.

They read a file without references and `extends`. A field's description (a service's: `keys.KEYS`)
says why other values are refused.

Source: compose-spec schema/compose-spec.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from ipaddress import IPv4Network
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from belljar.compose.values import (
    OutsideTaskError,
    Refusals,
    arguments,
    each,
    health_test,
    hosts,
    names_in,
    pairs,
    place_of,
    restart_of,
    seconds,
    size,
    switch,
    text,
    tmpfs_of,
    words,
)
from belljar.units import printable

NO_VALUE: Final = "its value can't be read"
UNKNOWN: Final = "Compose has no such key"
_MAX_ENV_FILES: Final = 16
_MOUNT_OPTIONS: Final = {"rw", "ro", "z", "Z", "cached", "delegated", "consistent", "nocopy"}
# They only say how strongly a container is isolated
RUNTIMES: Final = (
    *("runc", "crun", "youki", "runsc", "kata", "kata-runtime"),
    *("io.containerd.runc.v2", "io.containerd.runsc.v1", "io.containerd.kata.v2"),
)
_DRAWN: Final = "addresses are drawn for each range"
FOR_HOST: Final = "it would open this host to the cell"


# ---- types of fields


def _one_of(allowed: Sequence[object]) -> BeforeValidator:
    def check(value: object) -> object:
        if not any(type(value) is type(one) and value == one for one in allowed):
            raise ValueError(NO_VALUE)
        return value

    return BeforeValidator(check)


def _short(key: str) -> BeforeValidator:
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


def _names_as_keys(value: object) -> object:
    return value if isinstance(value, Mapping) else dict.fromkeys(names_in(value))


def _short_mount(value: object) -> object:
    """`[SOURCE:]TARGET[:OPTIONS]`."""
    if isinstance(value, Mapping):
        return value
    parts = text(value).split(":")
    if len(parts) == 1:
        return {"type": "volume", "target": parts[0]}
    options = set(parts[2].split(",")) if len(parts) == 3 else set()
    if len(parts) > 3 or parts[1].startswith("\\"):
        raise OutsideTaskError
    if unread := options - _MOUNT_OPTIONS:
        raise ValueError(f"the options {', '.join(sorted(unread))} are not read")
    kind = "bind" if parts[0].startswith((".", "/", "~", "\\")) else "volume"
    return {"type": kind, "source": parts[0], "target": parts[1], "read_only": "ro" in options}


Text = Annotated[str, BeforeValidator(text)]
Switch = Annotated[bool, BeforeValidator(switch)]
Off = Annotated[Any, _one_of((False, "false"))]
OffOrEmpty = Annotated[Any, _one_of((False, "false", {}))]
Empty = Annotated[Any, _one_of(([], {}, "", False, 0))]
One = Annotated[int, Field(strict=False, ge=1, le=1), BeforeValidator(text)]
Whole = Annotated[int, Field(strict=False), BeforeValidator(text)]
Number = Annotated[float, Field(strict=False, allow_inf_nan=False), BeforeValidator(text)]
Size = Annotated[str, BeforeValidator(size)]
# Docker's -1 and 0 mean no limit, which no cell has
Count = Annotated[int, Field(strict=False, ge=1), BeforeValidator(text)]
Names = Annotated[list[str], BeforeValidator(names_in)]
Command = Annotated[list[str], BeforeValidator(words)]
Id = Annotated[
    int, Field(strict=False, ge=0, le=65_535), BeforeValidator(lambda value: text(value or 0))
]
# Octal digits: YAML 1.2 reads a bare `0440` as 440
Mode = Annotated[int, Field(ge=0, le=0o777), BeforeValidator(lambda value: int(text(value), 8))]
InCell = Annotated[str, BeforeValidator(lambda value: place_of(text(value)))]
Tmpfs = Annotated[list[Annotated[str, BeforeValidator(tmpfs_of)]], BeforeValidator(each)]
Time = Annotated[float, BeforeValidator(lambda value: seconds(value) if value else 0.0)]
SoftLimit = Annotated[
    Text,
    BeforeValidator(lambda value: value.get("soft") if isinstance(value, Mapping) else value),
]
_Bridge = Literal[
    "com.docker.network.bridge.name",
    "com.docker.network.bridge.enable_ip_masquerade",
    "com.docker.network.bridge.host_binding_ipv4",
    "com.docker.network.driver.mtu",
]


# ---- parts


class Part(BaseModel):
    """A mapping, without its `x-` keys and null values."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _written(cls, value: object) -> object:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise ValueError("no mapping")
        named = ((str(key), item) for key, item in value.items() if item is not None)
        return {key: item for key, item in named if not key.startswith("x-")}


class Limits(Part):
    """`deploy.resources.limits`."""

    cpus: Number | None = None
    memory: Size | None = None
    pids: Count | None = None


class Reservations(Part):
    """Without `devices`, which a cell does not have."""

    cpus: Any = None
    memory: Any = None


class DeployResources(Part):
    """`deploy.resources`."""

    limits: Limits = Limits()
    reservations: Reservations = Reservations()


class RestartPolicy(Part):
    """`deploy.restart_policy`."""

    condition: Literal["none", "on-failure", "any"] = "any"
    max_attempts: Count | None = None
    delay: Any = None
    window: Any = None


class Deploy(Part):
    """One replica; untyped fields are a swarm's."""

    resources: DeployResources = DeployResources()
    replicas: One = 1
    restart_policy: RestartPolicy | None = None
    labels: Any = None
    mode: Any = None
    endpoint_mode: Any = None
    update_config: Any = None
    rollback_config: Any = None
    placement: Any = None


class Healthcheck(Part):
    """With Docker's defaults; 0 is the default too."""

    test: Annotated[list[str] | None, BeforeValidator(health_test)] = None
    interval: Time = 0.0
    timeout: Time = 0.0
    start_period: Time = 0.0
    start_interval: Time = 0.0
    retries: Annotated[Count | None, BeforeValidator(lambda value: value or None)] = None
    disable: Switch = False

    @model_validator(mode="after")
    def _has_test(self) -> Healthcheck:
        if "test" not in self.model_fields_set and not self.disable:
            raise ValueError("no test: the times alone of an image's own check are not changed")
        return self


class Condition(Enum):
    """What a service waits for in another."""

    STARTED = "service_started"
    HEALTHY = "service_healthy"
    COMPLETED = "service_completed_successfully"


class Dependency(Part):
    """One service of `depends_on`."""

    condition: Annotated[Condition, BeforeValidator(Condition)] = Condition.STARTED
    restart: Switch = False
    required: Switch = True


class Place(Part):
    """A service's place in a network."""

    aliases: Names = []
    interface_name: Literal["eth0"] | None = Field(None, description="only `eth0`")
    ipv4_address: Empty = Field(None, description=_DRAWN)
    ipv6_address: Empty = Field(None, description="it has no IPv6")
    link_local_ips: Empty = Field(None, description=_DRAWN)
    mac_address: Any = None
    driver_opts: Empty = Field(None, description="none")
    priority: Any = None
    gw_priority: Any = None


class Subnet(Part):
    """One entry of `ipam.config`."""

    subnet: (
        Annotated[IPv4Network, BeforeValidator(lambda it: IPv4Network(text(it), strict=False))]
        | None
    ) = None
    gateway: Any = None


class Ipam(Part):
    """A network's subnets."""

    driver: Literal["default"] | None = None
    config: list[Subnet] = []


class Network(Part):
    """A declared network."""

    name: Any = None
    driver: Literal["bridge", "default"] | None = Field(None, description="only `bridge`")
    driver_opts: dict[_Bridge, Any] = Field(
        {}, description="only those of a host's side of a bridge"
    )
    ipam: Ipam = Field(Ipam(), description=f"only subnets and gateways: {_DRAWN}")
    external: Off = Field(None, description="a range never joins a network of others")
    internal: Any = None
    enable_ipv4: Annotated[Any, _one_of((True, "true"))] = Field(None, description="it has IPv4")
    enable_ipv6: Off = Field(None, description="it has no IPv6")
    attachable: Any = None
    labels: Any = None


class Volume(Part):
    """A declared volume: a directory of a cell."""

    name: Any = None
    labels: Any = None
    driver: Literal["local"] | None = Field(None, description=FOR_HOST)
    external: OffOrEmpty = Field(None, description=FOR_HOST)
    driver_opts: OffOrEmpty = Field(None, description=FOR_HOST)


class BindOptions(Part):
    """Of a mount of this host's files."""

    create_host_path: Switch = True
    selinux: Any = None


class VolumeOptions(Part):
    """Of a mounted volume."""

    nocopy: Any = None
    labels: Any = None


class Mount(Part):
    """One of a service's `volumes`. `source` "": a nameless volume."""

    type: Literal["volume", "bind", "tmpfs"]
    source: Text = ""
    target: InCell
    read_only: Switch = False
    bind: BindOptions | None = None
    volume: VolumeOptions | None = None
    tmpfs: dict[str, Any] = {}
    consistency: Any = None

    @model_validator(mode="after")
    def _fits(self) -> Mount:
        others = {"bind", "volume", "tmpfs"} - {self.type}
        if any(getattr(self, other) for other in others):
            raise ValueError("it has options of another kind of mount")
        is_path = self.source.startswith(("/", "~", "\\")) or self.source[1:2] == ":"
        if is_path or (self.type == "volume" and self.source.startswith(".")):
            raise OutsideTaskError
        if self.type == "tmpfs" and self.source:
            raise ValueError("a tmpfs has no source")
        return self


class EnvFile(Part):
    """One of a service's `env_file`."""

    path: Text
    required: Switch = True
    format: Literal["raw"] | None = None


class Grant(Part):
    """One of a service's `secrets` or `configs`."""

    source: Text
    target: Text = ""
    uid: Id = 0
    gid: Id = 0
    mode: Mode = 0o444


class Granted(Part):
    """A declared secret or config."""

    file: Text | None = None
    content: Text | None = None
    name: Any = None
    labels: Any = None

    @model_validator(mode="after")
    def _has_one_source(self) -> Granted:
        if (self.file is None) == (self.content is None):
            raise ValueError("its contents are either a `file` of the task or `content`")
        return self


class Build(Part):
    """A service's `build`; untyped fields don't change the image."""

    context: Text = "."
    dockerfile: Text = "Dockerfile"
    args: Annotated[dict[str, str], BeforeValidator(arguments)] = {}
    target: Text = ""
    cache_from: Any = None
    cache_to: Any = None
    labels: Any = None
    no_cache: Any = None
    platforms: Any = None
    pull: Any = None
    shm_size: Any = None
    tags: Any = None
    provenance: Any = None
    sbom: Any = None


class Service(Part):
    """The keys whose values count; `keys.KEYS` has all."""

    image: Text = ""
    build: Any = None
    command: Command | None = None
    entrypoint: Command | None = None
    environment: Annotated[dict[str, str | None], BeforeValidator(pairs)] = {}
    env_file: Annotated[
        list[Annotated[EnvFile, _short("path")]],
        Field(max_length=_MAX_ENV_FILES),
        BeforeValidator(lambda value: each(value or [])),
    ] = []
    working_dir: Text | None = None
    user: Text | None = None
    cpus: Number = 0
    cpu_count: Number = 0
    cpu_quota: Whole = 0
    cpu_period: Whole = 0
    mem_limit: Size | None = None
    pids_limit: Count | None = None
    deploy: Deploy = Deploy()
    security_opt: list[Text] = []
    cap_drop: list[Text] = []
    cap_add: list[Text] = []
    privileged: Switch = False
    ports: list[Any] = []
    restart: Annotated[str | None, BeforeValidator(restart_of)] = None
    platform: Text = ""
    hostname: Text = ""
    container_name: Text = ""
    extra_hosts: Annotated[list[tuple[str, str]], BeforeValidator(hosts)] = []
    read_only: Switch = False
    tmpfs: Tmpfs = []
    shm_size: Size | None = None
    ulimits: dict[str, SoftLimit] = {}
    runtime: Annotated[Any, _one_of(RUNTIMES)] = None
    healthcheck: Healthcheck | None = None
    depends_on: Annotated[dict[str, Dependency], BeforeValidator(_names_as_keys)] = {}
    links: Names = []
    networks: Annotated[dict[str, Place], BeforeValidator(_names_as_keys)] = {}
    volumes: list[Annotated[Mount, BeforeValidator(_short_mount)]] = []
    secrets: Annotated[list[Annotated[Grant, _short("source")]], BeforeValidator(each)] = []
    configs: Annotated[list[Annotated[Grant, _short("source")]], BeforeValidator(each)] = []
    profiles: Names = []
    init: Switch = False
    expose: list[Any] = []
    network_mode: Literal["none"] | None = None
    use_api_socket: Off = None
    scale: One = 1
    ipc: Literal["private", "shareable", "none"] | None = None
    cgroup: Literal["private"] | None = None
    devices: Annotated[Any, _one_of(([], {}, ""))] = None


# ---- reading


_P = TypeVar("_P", bound=Part)


def reasons_of(model: type[Part]) -> dict[str, str]:
    """Why other values of each key are refused; "": none are."""
    return {name: field.description or "" for name, field in model.model_fields.items()}


def parse(
    model: type[_P],
    written: Mapping[str, Any],
    where: str,
    refused: Refusals,
    reasons: Mapping[str, str],
) -> _P:
    """The model of a mapping; keys that it can't keep go to `refused` instead.

    `reasons`: the detail for a refused key; without one, the fault.
    """
    kept = dict(written)
    while True:
        try:
            return model.model_validate(kept)
        except ValidationError as error:
            bad = set()
            for place, why, hint in _faults(error):
                key = str(place[0]) if place else ""
                detail = reasons.get(key) or _detail(kept.get(key), place[1:], why)
                if model is Service and key == "networks" and len(place) > 2:
                    inner = f"{where} in network {place[1]}"
                    key, detail = str(place[2]), reasons_of(Place).get(str(place[2])) or why
                    refused.add(inner, key, detail)
                else:
                    refused.add(where, key, detail, hint=hint)
                bad.add(place[0] if place else "")
            if not bad & kept.keys():
                return model.model_construct()
            kept = {key: value for key, value in kept.items() if key not in bad}


def read_part(model: type[_P], written: object) -> _P:
    """The model of a value. Raises `ValueError` with all its faults."""
    try:
        return model.model_validate(written)
    except ValidationError as error:
        found = ((".".join(map(str, place)), why) for place, why, _ in _faults(error))
        raise ValueError("; ".join(f"{key}: {why}" if key else why for key, why in found)) from None


def _faults(error: ValidationError) -> Iterator[tuple[tuple[int | str, ...], str, str]]:
    """Each fault's place, reason and hint."""
    for fault in error.errors(include_url=False, include_input=False):
        cause = fault.get("ctx", {}).get("error")
        why = UNKNOWN if fault["type"] == "extra_forbidden" else fault["msg"]
        hint = cause.hint if isinstance(cause, OutsideTaskError) else ""
        yield fault["loc"], str(cause) if isinstance(cause, ValueError) else why, hint


def _detail(written: object, place: tuple[int | str, ...], why: str) -> str:
    # A list's item is shown as it is written, other places by their names
    if place and isinstance(place[0], int):
        items = each(written)
        shown = printable(str(items[place[0]]), max_chars=100) if place[0] < len(items) else ""
        return f"{shown}: {printable(why)}"
    named = ".".join(printable(str(part)) for part in place)
    return f"{named}: {printable(why)}" if named else printable(why)
