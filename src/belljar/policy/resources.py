"""What a cell may consume: as a person writes it (sizes and durations with units), and as the
program uses it (bytes and seconds).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    field_validator,
)
from pydantic_core import CoreSchema, core_schema

from belljar.policy import fields as kinds
from belljar.policy.limits import Resources

_DEFAULT: Final = Resources()


class Strict(BaseModel):
    """Strict, frozen, no unknown fields, and no value of the file in a message that we did not
    escape.
    """

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True
    )


def _size(default_bytes: int, description: str) -> Any:  # noqa: ANN401 - pydantic's Field is Any
    return Field(
        default=default_bytes,
        description=description,
        json_schema_extra={"default": kinds.written_size(default_bytes)},
    )


def _duration(default_s: float, description: str) -> Any:  # noqa: ANN401 - pydantic's Field is Any
    return Field(
        default=default_s,
        description=description,
        json_schema_extra={"default": kinds.written_duration(default_s)},
    )


class ResourcesText(Strict):
    """Resources as they stand in the file: the names a person writes, the values in bytes and
    seconds.
    """

    cpus: Annotated[int, kinds.Whole(least=1, most=64)] = Field(
        default=_DEFAULT.cpus, description="Virtual processors."
    )
    memory: Annotated[int, kinds.Size(least="64MiB", most="256GiB")] = _size(
        _DEFAULT.memory_bytes, "Memory for the cell's processes. From 64MiB to 256GiB."
    )
    disk: Annotated[int, kinds.Size(least="16MiB", most="256GiB")] = _size(
        _DEFAULT.disk_bytes,
        "Room for what the cell writes; it is held in memory too. From 16MiB to 256GiB.",
    )
    processes: Annotated[int, kinds.Whole(least=16, most=32768)] = Field(
        default=_DEFAULT.processes, description="Processes and threads at one time."
    )
    lifetime: Annotated[float, kinds.Duration(least="10s", most="7d")] = _duration(
        _DEFAULT.lifetime_s,
        "After this long the cell is destroyed, whatever it does. From 10s to 7d.",
    )
    exec_timeout: Annotated[float, kinds.Duration(least="1s", most="1d")] = _duration(
        _DEFAULT.exec_timeout_s,
        "After this long a command without a timeout of its own is killed with its whole tree. "
        "From 1s to 1d, at most the lifetime.",
    )
    output: Annotated[int, kinds.Size(least="1KiB", most="256MiB")] = _size(
        _DEFAULT.output_bytes,
        "The most that is kept of each output stream of one command; the rest is dropped and "
        "counted. From 1KiB to 256MiB.",
    )

    @field_validator("exec_timeout", mode="after")
    @classmethod
    def _within_lifetime(cls, exec_timeout: float, info: Any) -> float:  # noqa: ANN401
        lifetime = info.data.get("lifetime")
        if lifetime is not None and exec_timeout > lifetime:
            raise ValueError(
                f"a command can't outlive its cell: at most the lifetime, "
                f"{kinds.written_duration(lifetime)}"
            )
        return exec_timeout

    def resources(self) -> Resources:
        """The same, in the program's units.

        A default `exec_timeout` shrinks to a shorter lifetime.
        """
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
    return written_resources(value) if isinstance(value, Resources) else value


def written_resources(value: Resources) -> dict[str, str | int]:
    """Resources in the words of a file."""
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

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        read = core_schema.no_info_after_validator_function(
            ResourcesText.resources, handler.generate_schema(ResourcesText)
        )
        return core_schema.no_info_before_validator_function(
            _as_written,
            read,
            serialization=core_schema.plain_serializer_function_ser_schema(asdict),
        )

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(core)


ResourcesField: TypeAlias = Annotated[Resources, _FromText()]
"""Reads what a person wrote, or a `Resources` that a program made; gives `Resources`."""
