"""What an egress case is: data. The tables are in `cases_…`, all of them in `table`."""

from __future__ import annotations

from dataclasses import dataclass

from tests.security.egress.evidence import Evidence, Refused


@dataclass(frozen=True)
class Case:
    """One way out that is tried from inside.

    Args: name: its own; letters, digits and `-`. tries: what is tried, in a few words. step: the
    prober's word and its arguments. In braces stand addresses and names of the run; `{port}` and
    `{token}` are this case's own. expects: what must come of it, in a few words. evidence: where
    the host must see it. where: the range and cell that it is tried in. alone: it changes what
    other steps of the cell need.
    """

    name: str
    tries: str
    step: tuple[str, ...]
    expects: str
    evidence: Evidence
    where: str = "deny"
    alone: bool = False


def get(host: str, path: str = "/{token}") -> str:
    """A plain request, `|` for each line's end."""
    return f"GET {path} HTTP/1.1|Host: {host}|Connection: close||"


def tcp(
    name: str, tries: str, address: str, reason: str, port: str = "{port}", where: str = "deny"
) -> Case:
    """A connection that is refused for this reason."""
    return Case(
        name,
        tries,
        ("tcp", address, port, "{token}"),
        "RST, on record",
        Refused(reason, address, port),
        where,
    )


def udp(
    name: str,
    tries: str,
    address: str,
    reason: str = "udp",
    port: str = "{port}",
    where: str = "deny",
) -> Case:
    """A datagram that is refused for this reason."""
    step = ("udp", address, port, "{token}")
    return Case(
        name, tries, step, "refused, on record", Refused(reason, address, port, "udp"), where
    )
