"""Which tools that act outside of a cell a policy lets the model call: MCP servers that run
elsewhere, web search, hosted code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field, PlainSerializer

from belljar.policy import fields as kinds
from belljar.policy.resources import Strict
from belljar.policy.risk import Risk

MAX_NAMES: Final = 64
MAX_NAME_CHARACTERS: Final = 256
ANY: Final = "*"


def _read_names(value: object) -> object:
    if isinstance(value, tuple):
        return value
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"a list of names is needed, but this is {kinds.kind_of(value)}")
    if not 0 < len(value) <= MAX_NAMES:
        raise ValueError(f"{len(value)} names; from 1 to {MAX_NAMES}")
    for name in value:
        if not 0 < len(name) <= MAX_NAME_CHARACTERS or not name.isprintable():
            raise ValueError(
                f"{kinds.quoted(name)} is no name of a tool: printable, at most {MAX_NAME_CHARACTERS} characters"
            )
    return tuple(value)


class HostTools(Strict):
    """The tools and MCP servers that may be called although they act outside of a cell; `*` stands
    for all.
    """

    allow: Annotated[tuple[str, ...], BeforeValidator(_read_names, json_schema_input_type=list[str])] = Field(
        description="Names of tools, or of MCP servers."
    )

    def permits(self, names: Iterable[str]) -> bool:
        """Whether a tool may be called; `names` are its own and its MCP server's."""
        return ANY in self.allow or any(name in self.allow for name in names)

    def __str__(self) -> str:
        if self == REFUSE:
            return "refused"
        if ANY in self.allow:
            return "allowed, and reported"
        return f"refused, but for {', '.join(self.allow)}"


REFUSE: Final = HostTools(allow=())
REPORT: Final = HostTools(allow=(ANY,))
_WORDS: Final = {"refuse": REFUSE, "report": REPORT}


def default_host_tools(risk: Risk) -> HostTools:
    """The rule of a policy that says nothing."""
    return REFUSE if risk >= Risk.HIGH else REPORT


def _read(value: object) -> object:
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    if value is None or isinstance(value, (dict, HostTools)):
        return value
    shown = f" ({kinds.quoted(value)})" if isinstance(value, str) else ""
    raise ValueError(
        f"`refuse`, `report`, or a mapping with `allow`, is needed, but this is {kinds.kind_of(value)}{shown}"
    )


def _written(rule: HostTools | None) -> Any:  # noqa: ANN401 - JSON values
    if rule is None:
        return None
    return next((word for word, each in _WORDS.items() if each == rule), {"allow": list(rule.allow)})


HostToolsField: TypeAlias = Annotated[
    HostTools | None,
    BeforeValidator(_read, json_schema_input_type=Literal["refuse", "report"] | HostTools),
    PlainSerializer(_written, return_type=Literal["refuse", "report"] | dict[str, Any] | None),
]
