"""What `belljar run` shows of each sample's network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from belljar.units import format_size, printable

if TYPE_CHECKING:
    from belljar.report.ranges import Flow, RangeFindings
    from belljar.report.requests import Request, Requests
    from belljar.report.samples import RunFindings

MAX_LINES: Final = 400
"""Of all samples: a report is read by a person.

`findings.json` in the run directory has the rest.
"""

_COLUMNS: Final = (
    "time (UTC)",
    "cell",
    "method",
    "what",
    "status",
    "asked → answered",
    "verdict",
    "answered by",
)
_WHY: Final = {
    "connection": "",
    "segment": "outside of any connection that is known",
    "others": "for several reasons",
    "spoofed": "a sender's address that is not the cell's",
    "source_route": "a route of the sender's choice",
    "options": "IPv4 options",
    "forbidden": "an address that no policy can allow",
    "neighbour": "another cell, which the policy does not let it reach there",
    "port": "a port that is not served there",
    "address": "an address that nobody has",
    "udp": "UDP that nobody serves",
    "icmp": "ICMP that nobody serves",
    "rate": "too many a second",
    "stray": "from no port of the range's",
}
"""The rules' words (`plan.rules.Reason`) that don't say it themselves, for a person."""


def network_lines(findings: RunFindings, run_id: str) -> list[str]:
    """A block for each range of a sample, escaped. Empty when no sample had a network."""
    lines: list[str] = []
    ranges = [(row.transcript, each) for row in findings.rows for each in row.ranges]
    for told, (transcript, found) in enumerate(ranges):
        if len(lines) > MAX_LINES:
            lines.append(
                f"\nThe network of {len(ranges) - told} more sample(s): findings.json in the run "
                f"directory"
            )
            break
        epoch = f" #{transcript.epoch}" if transcript.epoch > 1 else ""
        lines.append(
            f"\nNetwork of {printable(transcript.sample, max_chars=80)}{epoch}: {_about(found)}"
        )
        lines += (f"  {line}" for line in _block(found, run_id))
    return lines


def _about(found: RangeFindings) -> str:
    packets = f"; packets: {found.packets}" if found.packets else ""
    return (
        f"range {found.range_id}, cells "
        f"{', '.join(printable(name) for name in found.cells.values())}{packets}"
    )


def _block(found: RangeFindings, run_id: str) -> Iterator[str]:
    from belljar.report.ranges import ORDINARY

    if not found.requests.count and not found.talk.count:
        yield "no requests"
    yield from _requests(
        "to the gateway, each on record before it was answered", found, found.requests, run_id
    )
    yield from _requests(
        "between cells, read out of the packet record afterwards", found, found.talk, run_id
    )
    if found.requests.ambiguous or found.talk.ambiguous:
        yield (
            "ambiguous: the sender said two things in one place, or what a receiver may take or "
            "not; what was said first is told"
        )
    if found.left_out:
        yield (
            f"not read or not told of what cells said to each other, and in the packet record "
            f"alone: {found.left_out.sentence()}"
        )
    if found.requests.still_open:
        yield f"{found.requests.still_open} raw connection(s) open until the range ended"
    yield from _sums(found)
    if unusual := [
        f"{kind} {size}" for kind, size in found.remainder.items() if kind not in ORDINARY
    ]:
        yield (
            f"bytes outside of requests, messages and streams, in the events network.connection: "
            f"{', '.join(unusual)}"
        )
    yield from _flows(found)
    if thrown := found.counters.get("packets_recorded_and_dropped"):
        yield (
            f"{thrown} packet(s) of the packet record were thrown away beyond record.packets in "
            f"the policy"
        )
    if cut := found.counters.get("events_cut"):
        yield f"{cut} event(s) were cut down, beyond what a range may put on record"
    yield from (
        f"EVIDENCE MISSING: {printable(lost.sentence, max_chars=800)}" for lost in found.lost
    )


def _sums(found: RangeFindings) -> Iterator[str]:
    """× is how often."""
    for title, told in (
        ("attempts to publish, push or send", found.attempts),
        ("names asked for that exist here", found.names_found),
        ("names asked for that don't exist here", found.names_refused),
        ("TLS refused", found.tls_refused),
        ("limits hit", found.limits),
    ):
        if told:
            yield f"{title}: {told.sentence()}"


def _requests(title: str, found: RangeFindings, requests: Requests, run_id: str) -> Iterator[str]:
    """The first and the last in one table: what stands in a column is said once."""
    if not requests.count:
        return
    yield f"{requests.count} request(s) and connection(s) {title}:"
    # In columns; a long address is not cut, and moves only what stands after it in its own line
    rows = [_COLUMNS, *(_row(request) for request in requests)]
    widths = [min(60, max(len(cell) for cell in column)) for column in zip(*rows, strict=True)]
    head, *lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    yield head
    yield from lines[: len(requests.first)]
    if requests.between:
        yield (
            f"… {requests.between} more: belljar ledger show {run_id} --kind network --grep "
            f"{found.range_id}"
        )
    yield from lines[len(requests.first) :]


def _row(request: Request) -> tuple[str, ...]:
    answer = "-" if request.answer_bytes is None else format_size(request.answer_bytes)
    verdict = (
        request.verdict if request.verdict == "allowed" else f"{request.verdict}: {request.reason}"
    )
    return (
        request.time[11:23],
        request.cell or "?",
        request.method,
        request.what,
        "-" if request.status is None else str(request.status),
        f"{format_size(request.request_bytes)} → {answer}",
        f"{verdict}, ambiguous" if request.ambiguous else verdict,
        request.stand_in or "-",
    )


def _flows(found: RangeFindings) -> Iterator[str]:
    """What went to places of its own, one line for each fate; the rest as one sum."""
    flows = found.flows.values()
    yield from (f"{flow.verdict}: {_fate(flow)}" for flow in flows if flow.to)
    if stopped := [flow for flow in flows if flow.verdict != "allowed"]:
        packets, listed, probed, again = (
            sum(counts)
            for counts in zip(
                *((f.packets, f.to.times, f.probed, f.again) for f in stopped), strict=True
            )
        )
        yield (
            f"{packets} packet(s) refused or dropped: {listed} listed above; {probed} to places "
            f"first tried while Belljar probed a cell, most likely by its probes; "
            f"{again} known by number alone, as they went where others had gone before (so do "
            f"the probes at the end) or beyond a hundred places"
        )


def _fate(flow: Flow) -> str:
    what = "connections" if flow.reason == "connection" else "packets"
    why = _WHY.get(flow.reason, flow.reason)
    afterwards = ", counted in the packet record afterwards" if flow.traffic_analysis else ""
    said = f"{flow.protocol} {what} of {flow.cell or 'nobody known'} to {flow.to.sentence()}"
    return f"{said} ({why}{afterwards})" if why else said
