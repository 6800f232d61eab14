"""Which tools that act outside of a cell the model may call, as a rule. Without pydantic: each plan
needs this."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from belljar.dataclass import dataclass
from belljar.policy.risk import Risk

ANY: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTools:
    """The tools and MCP servers that may be called although they act outside of a cell; `*` stands
    for all.
    """

    allow: tuple[str, ...]

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


def default_host_tools(risk: Risk) -> HostTools:
    """The rule of a policy that says nothing."""
    return REFUSE if risk >= Risk.HIGH else REPORT
