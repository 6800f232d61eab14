"""What a policy says, typed. Frozen, strict, nothing unknown.

`Policy` is the edge: pydantic, reads what a person wrote. `Resources` is what the rest of the program uses: bytes and seconds, the units
in its names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    field_validator,
)
from pydantic_core import CoreSchema, core_schema

from belljar.policy import fields as kinds
from belljar.policy.risk import Risk, Tier, least_tier, lowered

VERSION: Final = 1
MAX_FILES: Final = 256
MAX_VARIABLES: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a cell may consume at most. The defaults are the format's.

    All state of a cell lives in memory: `memory_bytes` is for its processes, `disk_bytes` for what it writes, and a VM's memory is their sum and an
    overhead. `output_bytes` is the most that is kept of each stream of one command; what comes after is dropped and counted. At `exec_timeout_s` a
    command and its whole tree are killed, at `lifetime_s` the cell.
    """

    cpus: int = 1
    memory_bytes: int = 512 << 20
    disk_bytes: int = 512 << 20
    processes: int = 512
    lifetime_s: float = 4 * 3600.0
    exec_timeout_s: float = 600.0
    output_bytes: int = 10 << 20


_DEFAULT: Final = Resources()


class _Strict(BaseModel):
    """Strict, frozen, no unknown fields, and no value of the file in a message that we did not escape."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)


def _size(default_bytes: int, description: str) -> Any:  # noqa: ANN401 - pydantic's Field is Any
    return Field(
        default=default_bytes, description=description, json_schema_extra={"default": kinds.written_size(default_bytes)}
    )


def _duration(default_s: float, description: str) -> Any:  # noqa: ANN401 - pydantic's Field is Any
    return Field(
        default=default_s, description=description, json_schema_extra={"default": kinds.written_duration(default_s)}
    )


class ResourcesText(_Strict):
    """Resources as they stand in the file: the names a person writes, the values in bytes and seconds."""

    cpus: Annotated[int, kinds.Whole(least=1, most=64)] = Field(
        default=_DEFAULT.cpus, description="Virtual processors."
    )
    memory: Annotated[int, kinds.Size(least="64MiB", most="256GiB")] = _size(
        _DEFAULT.memory_bytes, "Memory for the cell's processes. From 64MiB to 256GiB."
    )
    disk: Annotated[int, kinds.Size(least="16MiB", most="256GiB")] = _size(
        _DEFAULT.disk_bytes, "Room for what the cell writes; it is held in memory too. From 16MiB to 256GiB."
    )
    processes: Annotated[int, kinds.Whole(least=16, most=32768)] = Field(
        default=_DEFAULT.processes, description="Processes and threads at one time."
    )
    lifetime: Annotated[float, kinds.Duration(least="10s", most="7d")] = _duration(
        _DEFAULT.lifetime_s, "After this long the cell is destroyed, whatever it does. From 10s to 7d."
    )
    exec_timeout: Annotated[float, kinds.Duration(least="1s", most="1d")] = _duration(
        _DEFAULT.exec_timeout_s,
        "After this long a command without a timeout of its own is killed with its whole tree. From 1s to 1d, at most the lifetime.",
    )
    output: Annotated[int, kinds.Size(least="1KiB", most="256MiB")] = _size(
        _DEFAULT.output_bytes,
        "The most that is kept of each output stream of one command; the rest is dropped and counted. From 1KiB to 256MiB.",
    )

    @field_validator("exec_timeout", mode="after")
    @classmethod
    def _within_lifetime(cls, exec_timeout: float, info: Any) -> float:  # noqa: ANN401 - pydantic's ValidationInfo
        lifetime = info.data.get("lifetime")
        if lifetime is not None and exec_timeout > lifetime:
            raise ValueError(
                f"a command can't outlive its cell: at most the lifetime, {kinds.written_duration(lifetime)}"
            )
        return exec_timeout

    def resources(self) -> Resources:
        """The same, in the program's units. A default `exec_timeout` shrinks to a shorter lifetime."""
        return Resources(
            cpus=self.cpus,
            memory_bytes=self.memory,
            disk_bytes=self.disk,
            processes=self.processes,
            lifetime_s=self.lifetime,
            exec_timeout_s=min(self.exec_timeout, self.lifetime),
            output_bytes=self.output,
        )


def _as_written(value: object) -> object:
    """A `Resources` made by a program goes through the same bounds as a file's."""
    if not isinstance(value, Resources):
        return value
    return {
        "cpus": value.cpus,
        "memory": f"{value.memory_bytes}B",
        "disk": f"{value.disk_bytes}B",
        "processes": value.processes,
        "lifetime": f"{value.lifetime_s:.6f}s",
        "exec_timeout": f"{value.exec_timeout_s:.6f}s",
        "output": f"{value.output_bytes}B",
    }


class _FromText:
    """Reads `ResourcesText`, gives `Resources`; an editor sees the former."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        read = core_schema.no_info_after_validator_function(
            ResourcesText.resources, handler.generate_schema(ResourcesText)
        )
        return core_schema.no_info_before_validator_function(
            _as_written, read, serialization=core_schema.plain_serializer_function_ser_schema(asdict)
        )

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(core)


class FileCopy(_Strict):
    """A file that is copied into the cell before its first command. No path of the host is ever shared with a cell."""

    source: Annotated[str, kinds.SOURCE] = Field(
        description="The file, below the policy's own directory and relative to it."
    )
    target: Annotated[str, kinds.TARGET] = Field(
        description="Its path in the cell, absolute or relative to the working directory."
    )
    mode: Annotated[int, kinds.MODE] | None = Field(
        default=None, description='Permissions as octal digits in quotes; default "0644".'
    )
    owner: Annotated[str, kinds.USER] | None = Field(
        default=None, description="Who owns it in the cell; default the cell's user."
    )


def _as_tuple(value: object) -> object:
    if isinstance(value, tuple):
        return value
    if not isinstance(value, list):
        raise ValueError(f"a list of files is needed, but this is {kinds.kind_of(value)}")
    if len(value) > MAX_FILES:
        raise ValueError(f"{len(value)} files; at most {MAX_FILES}. Put many files into an image")
    return tuple(value)


class Policy(_Strict):
    """What one cell may be, read, write, reach and consume: its blast radius, as its author states it."""

    belljar: Annotated[int, kinds.Version(version=VERSION)] = Field(description="The version of this format.")
    name: Annotated[str, kinds.NAME] = Field(
        default="policy", description="What this policy is called in reports; default the file's name."
    )
    risk: Annotated[Risk, kinds.Choice(words=Risk)] = Field(
        description="How bad the model's worst could be. Decides the least tier: low container, medium gvisor, high and critical microvm."
    )
    tier: Annotated[Tier, kinds.Choice(words=Tier)] | None = Field(
        default=None, description="Only to raise the tier above what the risk demands."
    )
    image: Annotated[str, kinds.IMAGE] = Field(
        default="default", description="The root filesystem: an image's name or its sha256 digest."
    )
    resources: Annotated[Resources, _FromText()] = Field(
        default=_DEFAULT, description="What the cell may consume at most.", json_schema_extra={"default": {}}
    )
    user: Annotated[str, kinds.USER] | None = Field(
        default=None, description="Who runs commands: a name, a uid, or uid:gid. Default the image's user."
    )
    workdir: Annotated[str, kinds.WORKDIR] | None = Field(
        default=None, description="Where commands run. Default the image's working directory."
    )
    env: Mapping[Annotated[str, kinds.ENV_NAME], Annotated[str, kinds.ENV_VALUE]] = Field(
        default_factory=dict,
        max_length=MAX_VARIABLES,
        description="Environment variables, added to the image's; read-only.",
    )
    files: Annotated[tuple[FileCopy, ...], BeforeValidator(_as_tuple, json_schema_input_type=list[FileCopy])] = Field(
        default=(), description="Files that are copied in."
    )
    network: Annotated[str, kinds.NETWORK] = Field(
        default="none", description="Only none: a cell has no network device at all."
    )

    @field_validator("tier", mode="after")
    @classmethod
    def _only_raised(cls, tier: Tier | None, info: Any) -> Tier | None:  # noqa: ANN401 - pydantic's ValidationInfo
        risk = info.data.get("risk")
        if tier is not None and risk is not None and tier < least_tier(risk):
            raise ValueError(f"{lowered(risk, tier)}. Leave `tier` out or raise it")
        return tier

    @field_validator("files", mode="after")
    @classmethod
    def _each_target_once(cls, files: tuple[FileCopy, ...]) -> tuple[FileCopy, ...]:
        seen: set[str] = set()
        for file in files:
            if file.target in seen:
                raise ValueError(f"two files have the target {kinds.quoted(file.target)}")
            seen.add(file.target)
        return files

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json(), sort_keys=True))

    def to_json(self) -> dict[str, Any]:
        """The policy as JSON values, all defaults filled in, sizes in bytes and durations in seconds."""
        return self.model_dump(mode="json")


def policy_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a policy file, for editors: sizes and durations are strings with a pattern, as people write them."""
    schema = Policy.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Belljar policy"}
