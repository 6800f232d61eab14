"""The parts of a compose file that cells can keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from belljar.compose import values
from belljar.compose.values import OUTSIDE_TASK, Refusals, each, limit, names_in, switch, text
from belljar.units import parse_duration, printable

UNKNOWN: Final = "Compose has no such key"
_MAX_ENV_FILES: Final = 16  # each is read whole, for every service that names it
# Of these only `ro` changes what a cell has; a cell has no labels of SELinux.
_MOUNT_OPTIONS: Final = {"rw", "ro", "z", "Z"}
NO_DEVICE: Final = "no cell has a GPU or another device"
FOR_HOST: Final = "it would open this host to the cell"


def _names_as_keys(value: object) -> object:
    return value if isinstance(value, Mapping) else dict.fromkeys(names_in(value))


def _only_names(value: object) -> list[str]:
    if isinstance(value, Mapping) and any(item is not None for item in value.values()):
        raise ValueError("only the networks' names are read")
    return names_in(value)


def _mount(value: object) -> object:
    parts = value.split(":") if isinstance(value, str) else []
    options = set(parts[2].split(",")) if len(parts) == 3 else set()
    if len(parts) not in {1, 2, 3} or not options <= _MOUNT_OPTIONS:
        raise ValueError("only `[SOURCE:]TARGET[:ro]` is read")
    source = parts[0] if len(parts) > 1 else ""
    if source.startswith(("/", "~", "\\")):
        raise ValueError(OUTSIDE_TASK)
    return {"source": source, "target": parts[len(parts) > 1], "read_only": "ro" in options}


def _without_devices(value: object) -> object:
    if not isinstance(value, Mapping) or set(value) - {"cpus", "memory"}:
        raise ValueError(NO_DEVICE)
    return value


def _arguments(value: object) -> dict[str, str]:
    if not isinstance(value, (Mapping, list)):
        raise ValueError("neither a mapping nor a list")
    return {name: item for name, item in values.pairs(value).items() if item is not None}


Text = Annotated[str, BeforeValidator(text)]
Switch = Annotated[bool, BeforeValidator(switch)]
Off = Annotated[Literal[False] | None, BeforeValidator(switch)]
One = Annotated[int, Field(strict=False, ge=1, le=1), BeforeValidator(text)]
# None: no limit, which no cell has
Whole = Annotated[int | None, Field(strict=False, ge=1), BeforeValidator(limit)]
Number = Annotated[
    float | None, Field(strict=False, gt=0, allow_inf_nan=False), BeforeValidator(limit)
]
Size = Annotated[str | None, BeforeValidator(values.size)]
Command = Annotated[list[str], BeforeValidator(values.words)]
Tmpfs = Annotated[list[Annotated[str, BeforeValidator(values.tmpfs_of)]], BeforeValidator(each)]
Time = Annotated[float, BeforeValidator(lambda value: parse_duration(text(value or "0s")))]
# They only say how strongly a container is isolated
_RUNTIMES: Final = r"runc|crun|youki|runsc|kata|kata-runtime|io\.containerd\.(runc|runsc|kata)\.v2"
Runtime = Annotated[str, Field(pattern=rf"^({_RUNTIMES})$")]


class Part(BaseModel):
    """Nulls and keys without effect are left out."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)
    ignored: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _written(cls, value: object) -> object:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise ValueError("no mapping")
        ignored = cls.ignored.split()
        named = ((str(key), item) for key, item in value.items() if item is not None)
        return {k: item for k, item in named if not k.startswith("x-") and k not in ignored}


class Limits(Part):
    cpus: Number = None
    memory: Size = None
    pids: Whole = None


class DeployResources(Part):
    limits: Limits = Limits()
    # A reserved device is a GPU: a task that needs one must not run without it unnoticed.
    reservations: Annotated[Any, BeforeValidator(_without_devices)] = None


class Deploy(Part):
    # A swarm's.
    ignored: ClassVar[str] = "labels mode endpoint_mode update_config rollback_config placement"
    resources: DeployResources = DeployResources()
    replicas: One = 1


class Healthcheck(Part):
    """0 is Docker's default; without a test it is the image's."""

    ignored: ClassVar[str] = "start_interval"  # a cell asks at least once a second
    test: Annotated[list[str] | None, BeforeValidator(values.health_test)] = None
    interval: Time = 0.0
    timeout: Time = 0.0
    start_period: Time = 0.0
    retries: Whole = None
    disable: Switch = False


class Condition(Enum):
    STARTED = "service_started"
    HEALTHY = "service_healthy"
    COMPLETED = "service_completed_successfully"


class Dependency(Part):
    ignored: ClassVar[str] = "restart required"
    condition: Annotated[Condition, BeforeValidator(Condition)] = Condition.STARTED


class ComposeNetwork(Part):
    ignored: ClassVar[str] = "name internal attachable labels"
    driver: Literal["bridge", "default"] | None = Field(None, description="only `bridge`")
    external: Off = Field(None, description="a range never joins a network of others")
    enable_ipv6: Off = Field(None, description="it has no IPv6")


class Volume(Part):
    ignored: ClassVar[str] = "name labels"
    driver: Literal["local"] | None = Field(None, description=FOR_HOST)
    external: Off = Field(None, description=FOR_HOST)


class Mount(Part):
    """`source`: `./…`, a volume's name, or ""."""

    source: str
    target: Annotated[str, BeforeValidator(values.place_of)]
    read_only: bool


class Build(Part):
    ignored: ClassVar[str] = (
        "cache_from cache_to labels no_cache platforms pull shm_size tags provenance sbom"
    )

    context: Text = "."
    dockerfile: Text = ""
    dockerfile_inline: Text = ""
    args: Annotated[dict[str, str], BeforeValidator(_arguments)] = {}
    target: Text = ""

    @model_validator(mode="after")
    def _has_one_dockerfile(self) -> Build:
        if self.dockerfile and self.dockerfile_inline:
            raise ValueError("it has both `dockerfile` and `dockerfile_inline`")
        return self


class Service(Part):
    """The keys whose values count; `keys.KEYS` has all."""

    image: Text = ""
    build: Any = None
    command: Command | None = None
    entrypoint: Command | None = None
    environment: Annotated[dict[str, str | None], BeforeValidator(values.pairs)] = {}
    env_file: Annotated[
        list[Text],
        Field(max_length=_MAX_ENV_FILES),
        BeforeValidator(lambda value: each(value or [])),
    ] = []
    working_dir: Text | None = None
    user: Text | None = None
    cpus: Number = None
    mem_limit: Size = None
    pids_limit: Whole = None
    deploy: Deploy = Deploy()
    security_opt: list[Text] = []
    cap_add: list[Text] = []
    privileged: Switch = False
    restart: Annotated[  # YAML reads Docker's `no` as false
        str, BeforeValidator(lambda value: "" if value in (False, "no") else text(value))
    ] = ""
    hostname: Text = ""
    container_name: Text = ""
    extra_hosts: Annotated[list[tuple[str, str]], BeforeValidator(values.hosts)] = []
    read_only: Switch = False
    tmpfs: Tmpfs = []
    runtime: Runtime | None = Field(default=None, description=FOR_HOST)
    healthcheck: Healthcheck | None = None
    depends_on: Annotated[dict[str, Dependency], BeforeValidator(_names_as_keys)] = {}
    networks: Annotated[list[str], BeforeValidator(_only_names)] = []
    volumes: list[Annotated[Mount, BeforeValidator(_mount)]] = []
    init: Switch = False
    network_mode: Literal["none", "bridge", "default"] | None = Field(
        default=None, description="`none` and `bridge` are kept: a range has no other networks"
    )
    scale: One = Field(default=1, description="each service is one cell")


_P = TypeVar("_P", bound=Part)


def parse(model: type[_P], written: Mapping[str, Any], where: str, refused: Refusals) -> _P:
    """`refused` gets keys that are not read."""
    try:
        return model.model_validate(written)
    except ValidationError as error:
        known = model.model_fields
        kept = {key: value for key, value in written.items() if key in known}
        for place, why in _faults(error):
            key = str(place[0]) if place else ""
            kept.pop(key, None)
            # A list's item is named by its number, other places by their names.
            detail = ".".join(printable(str(part)) for part in place[1:])
            described = known[key].description if key in known else None
            refused.add(where, key, described or f"{detail}: {why}".removeprefix(": "))
    try:  # again without the bad keys, so that the rest is still converted
        return model.model_validate(kept)
    except ValidationError:  # of no single key
        return model.model_construct()


def read_part(model: type[_P], written: object) -> _P:
    """Raises `ValueError` with all faults."""
    try:
        return model.model_validate(written)
    except ValidationError as error:
        found = ((".".join(map(str, place)), why) for place, why in _faults(error))
        raise ValueError("; ".join(f"{key}: {why}" if key else why for key, why in found)) from None


def _faults(error: ValidationError) -> Iterator[tuple[tuple[int | str, ...], str]]:
    for fault in error.errors(include_url=False, include_input=False):
        cause, why = fault.get("ctx", {}).get("error"), fault["msg"]
        # pydantic's place of a bad key, rather than a bad value, ends so.
        place = fault["loc"][:-1] if fault["loc"][-1:] == ("[key]",) else fault["loc"]
        if fault["type"] == "extra_forbidden" or place != fault["loc"]:
            why = "it is not read here"
        yield place, printable(str(cause) if isinstance(cause, ValueError) else why)
