"""What every stand-in of a policy has: names, ports, and the shapes of its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from belljar.policy import fields as kinds
from belljar.policy import hosts
from belljar.policy.resources import Strict

MAX_PORTS: Final = 64


MAX_NAMES: Final = 250


MAX_NETWORKS: Final = 16


ALL_PORTS: Final = 0
"""The number of a target cell's port that stands for every one."""


_WEB: Final = ("http", "tls")


NUMBER: Final = kinds.Text(reader=hosts.read_number, pattern="", types=("integer",))


class At(ValueError):  # noqa: N818 - a ValueError with a place, as pydantic wants it
    """A refusal whose place is `path` below the field that is checked."""

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path


def read_switch(value: object) -> object:
    """`true` or `false`. Raises `ValueError`."""
    if not isinstance(value, bool):
        raise ValueError(f"`true` or `false` is needed, but this is {kinds.kind_of(value)}")
    return value


Switch: TypeAlias = Annotated[bool, BeforeValidator(read_switch, json_schema_input_type=bool)]


def list_of(what: str, most: int, *, least: int = 1) -> BeforeValidator:
    """A list of so many things, read into a tuple."""

    def read(value: object) -> object:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"a list of {what} is needed, but this is {kinds.kind_of(value)}")
        if not least <= len(value) <= most:
            raise ValueError(f"{len(value)} {what}: from {least} to {most}")
        return tuple(value)

    return BeforeValidator(read, json_schema_input_type=list[Any])


class Port(Strict):
    """A TCP port and what is spoken there; protocol "": what is usual at that number for
    the kind.
    """

    number: int
    protocol: str = ""


def _read_port(value: object) -> object:
    if isinstance(value, Port):
        return value
    number, protocol = hosts.read_port(value)
    return Port(number=number, protocol=protocol)


def _read_target_port(value: object) -> object:
    return Port(number=ALL_PORTS, protocol="tcp") if value == "all" else _read_port(value)


def _all_alone(ports: tuple[Port, ...]) -> tuple[Port, ...]:
    if len(ports) > 1 and any(port.number == ALL_PORTS for port in ports):
        raise ValueError("`all` stands alone")
    return ports


PortField: TypeAlias = Annotated[
    Port, BeforeValidator(_read_port, json_schema_input_type=int | str)
]


Ports: TypeAlias = Annotated[tuple[PortField, ...], list_of("ports", MAX_PORTS)]


TargetPorts: TypeAlias = Annotated[
    tuple[
        Annotated[Port, BeforeValidator(_read_target_port, json_schema_input_type=int | str)], ...
    ],
    list_of("ports", MAX_PORTS),
    AfterValidator(_all_alone),
]


HostNames: TypeAlias = Annotated[
    tuple[Annotated[str, hosts.HOST], ...], list_of("names", MAX_NAMES)
]


Names: TypeAlias = Annotated[tuple[Annotated[str, hosts.PATTERN], ...], list_of("names", MAX_NAMES)]


Relative: TypeAlias = Annotated[str, kinds.SOURCE]


Directory: TypeAlias = Annotated[str, kinds.DIRECTORY]


def _read_mapping(value: object) -> object:
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(
            f"a mapping of names to values is needed, but this is {kinds.kind_of(value)}"
        )
    return value


CellNetworks: TypeAlias = Annotated[
    tuple[Annotated[str, kinds.NAME], ...], list_of("names of networks", MAX_NETWORKS)
]


NETWORKS: Final = (
    "Two cells that both have some, and none in common, don't reach each other. Default: every "
    "cell's."
)


JsonMapping: TypeAlias = Annotated[
    Mapping[str, Any], BeforeValidator(_read_mapping, json_schema_input_type=dict[str, Any])
]


class StandIn(Strict):
    """What every kind has. `protocols` are those that the kind can speak, the usual one first."""

    protocols: ClassVar[tuple[str, ...]] = _WEB
    usual_ports: ClassVar[tuple[int, ...]] = (80, 443)
    file_field: ClassVar[str] = ""
    """The field that names a file of the author's; the stand-in sees the directory that this file
    is in.
    """
    directory_field: ClassVar[str] = ""
    """The field that names a directory of the author's."""

    kind: str
    names: Names = Field(
        description="Host names, exact or `*.` and a name (one more label). An exact name wins "
        "over a wildcard."
    )
    ports: Ports | None = Field(
        default=None,
        description="TCP ports: a number, or NUMBER/PROTOCOL with http, tls, tcp, smtp or smtps. "
        "Default by kind.",
    )

    @model_validator(mode="after")
    def _speaks(self) -> StandIn:
        seen: set[int] = set()
        for index, port in enumerate(self.ports or ()):
            if port.protocol and port.protocol not in self.protocols:
                what = (
                    f"a stand-in of kind `{self.kind}` speaks {kinds.listed(self.protocols)}, not "
                    f"`{port.protocol}`"
                )
                raise At(what, "ports", index)
            if port.number in seen:
                raise At(f"port {port.number} stands twice", "ports", index)
            seen.add(port.number)
        return self

    def spoken_ports(self) -> tuple[tuple[int, str], ...]:
        """Every port with its protocol, defaults filled in."""
        ports = self.ports or tuple(Port(number=number) for number in self.usual_ports)
        return tuple(
            (port.number, port.protocol or hosts.usual_protocol(port.number, self.protocols))
            for port in ports
        )

    def own_path(self) -> tuple[str, str]:
        """The field that names the author's file or directory, and the path; ("", "") when there is
        none.
        """
        for name in (self.file_field, self.directory_field):
            path = getattr(self, name) if name else None
            if isinstance(path, str):
                return name, path
        return "", ""

    def settings(self) -> dict[str, Any]:
        """The kind's own fields as JSON values, those that aren't written left out."""
        common = {"kind", "names", "ports"}
        return self.model_dump(mode="json", exclude=common, exclude_none=True)
