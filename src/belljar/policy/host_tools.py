"""Which tools that act outside of a cell a policy lets the model call: MCP servers that run
elsewhere, web search, hosted code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from belljar.policy import fields as kinds
from belljar.policy.outside_tools import REFUSE, REPORT, HostTools
from belljar.policy.resources import Strict

MAX_NAMES: Final = 64
MAX_NAME_CHARACTERS: Final = 256


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
                f"{kinds.quoted(name)} is no name of a tool: printable, at most "
                f"{MAX_NAME_CHARACTERS} characters"
            )
    return tuple(value)


class HostToolsText(Strict):
    """The tools and MCP servers that may be called although they act outside of a cell; `*` stands
    for all.
    """

    allow: Annotated[
        tuple[str, ...], BeforeValidator(_read_names, json_schema_input_type=list[str])
    ] = Field(description="Names of tools, or of MCP servers.")


_WORDS: Final = {"refuse": REFUSE, "report": REPORT}


def _read(value: object) -> object:
    if isinstance(value, str) and value in _WORDS:
        value = _WORDS[value]
    if isinstance(value, HostTools):
        return {"allow": value.allow}
    if value is None or isinstance(value, dict):
        return value
    shown = f" ({kinds.quoted(value)})" if isinstance(value, str) else ""
    raise ValueError(
        f"`refuse`, `report`, or a mapping with `allow`, is needed, but this is "
        f"{kinds.kind_of(value)}{shown}"
    )


def _written(rule: HostTools | None) -> Any:  # noqa: ANN401 - JSON values
    if rule is None:
        return None
    return next(
        (word for word, each in _WORDS.items() if each == rule), {"allow": list(rule.allow)}
    )


def _rule(text: HostToolsText | None) -> HostTools | None:
    return None if text is None else HostTools(allow=text.allow)


if TYPE_CHECKING:
    HostToolsField: TypeAlias = HostTools | None
else:
    HostToolsField = Annotated[
        HostToolsText | None,
        BeforeValidator(_read, json_schema_input_type=Literal["refuse", "report"] | HostToolsText),
        AfterValidator(_rule),
        PlainSerializer(_written, return_type=Literal["refuse", "report"] | dict[str, Any] | None),
    ]
