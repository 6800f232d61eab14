"""How a cell differs from what its task's author wrote, one fact at a time. Pure.

What decides (a compose file's reader, the policy's merge, the image's configuration) returns these;
`belljar check`, the summary of `belljar run`, Inspect's log and the report show them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from belljar.events import JsonValue


class Kind(StrEnum):
    """What became of it. Only `KEPT` leaves the task as it was written."""

    KEPT = "kept"
    CHANGED = "changed"
    """It is there in another form: a part of a processor rounded up, a mount copied as data."""
    DROPPED = "dropped"
    """It is not there, and what the model can do is the same without it."""
    GRANTED = "granted"
    """A right inside the machine, given because the cell has a kernel of its own."""
    OVERRIDDEN = "overridden"
    """The operator's policy replaced it, by `--override`."""
    REFUSED = "refused"
    """The task can't run as it is; nothing of it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One fact about one part of a task's sandbox.

    Attributes:
        kind: what became of it.
        where: the part it belongs to: `service web`, `image`, `sample`; "" for the whole.
        key: as the author wrote it: `cpuset`, `cap_add`, `ENTRYPOINT`.
        detail: one sentence for a person, without a final stop.
        hint: what to do about it, "" for nothing.
    """

    kind: Kind
    where: str = ""
    key: str = ""
    detail: str = ""
    hint: str = ""

    def data(self) -> dict[str, JsonValue]:
        """As data of an event, and for `--json`."""
        return {
            "kind": self.kind.value,
            "where": self.where,
            "key": self.key,
            "detail": self.detail,
            "hint": self.hint,
        }
