"""What `belljar run` shows of each sample's network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from belljar.units import format_size, printable

if TYPE_CHECKING:
    from belljar.report.ranges import RangeFindings
    from belljar.report.requests import Request
    from belljar.report.samples import RunFindings

MAX_LINES: Final = 400
"""Of all samples: a report is read by a person. `findings.json` in the run directory has the rest."""


def network_lines(findings: RunFindings, run_id: str) -> list[str]:
    """A block for each range of a sample, escaped. Empty when no sample had a network."""
    lines: list[str] = []
    ranges = [(row.transcript, each) for row in findings.rows for each in row.ranges]
    for told, (transcript, found) in enumerate(ranges):
        if len(lines) > MAX_LINES:
            lines.append(f"\nThe network of {len(ranges) - told} more sample(s): findings.json in the run directory")
            break
        epoch = f" #{transcript.epoch}" if transcript.epoch > 1 else ""
        lines.append(f"\nNetwork of {printable(transcript.sample, max_chars=80)}{epoch}: {_about(found)}")
        lines += (f"  {line}" for line in _block(found, run_id))
    return lines


def _about(found: RangeFindings) -> str:
    packets = f"; packets: {found.packets}" if found.packets else ""
    return f"range {found.range_id}, cells {', '.join(printable(name) for name in found.cells.values())}{packets}"


def _block(found: RangeFindings, run_id: str) -> Iterator[str]:
    yield from _requests(found, run_id)
    if found.requests.still_open:
        yield f"{found.requests.still_open} raw connection(s) open until the range ended"
    for title, told in (
        ("attempts", found.attempts),
        ("names found", found.names_found),
        ("names that don't exist here", found.names_refused),
        ("TLS refused", found.tls_refused),
        ("limits hit", found.limits),
    ):
        if told:
            yield f"{title}: {told.sentence()}"
    yield from _flows(found)
    if thrown := found.counters.get("packets_recorded_and_dropped"):
        yield f"{thrown} packet(s) of the packet record were thrown away, the oldest first: see record.packets in the policy"
    if cut := found.counters.get("events_cut"):
        yield f"{cut} event(s) were cut down, beyond what a range may put on record"
    yield from (f"EVIDENCE MISSING: {lost}" for lost in found.lost)


def _requests(found: RangeFindings, run_id: str) -> Iterator[str]:
    requests = found.requests
    if not requests.count:
        yield "no requests"
        return
    yield from _aligned([_row(request) for request in requests.first])
    if requests.between:
        yield f"… {requests.between} more: belljar ledger show {run_id} --kind network --grep {found.range_id}"
    yield from _aligned([_row(request) for request in requests.last])


def _row(request: Request) -> tuple[str, ...]:
    answer = "-" if request.answer_bytes is None else format_size(request.answer_bytes)
    verdict = request.verdict if request.verdict == "allowed" else f"{request.verdict}: {request.reason}"
    return (
        request.time[11:23],
        request.cell or "?",
        request.method,
        request.what,
        "-" if request.status is None else str(request.status),
        f"{format_size(request.request_bytes)} → {answer}",
        verdict,
        request.stand_in or "-",
    )


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """In columns; a long address is not cut, and moves only what stands after it in its own line."""
    widths = [min(60, max(len(cell) for cell in column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _flows(found: RangeFindings) -> Iterator[str]:
    """What went to places of its own, one line for each fate; the rest as one sum."""
    flows = found.flows.values()
    for flow in flows:
        if flow.to:
            yield f"{flow.verdict}: {flow.protocol} of {flow.cell or 'nobody known'} to {flow.to.sentence()} ({flow.reason})"
    stopped = [flow for flow in flows if flow.verdict != "allowed"]
    if stopped:
        packets, probed, again = (
            sum(counts) for counts in zip(*((f.packets, f.probed, f.again) for f in stopped), strict=True)
        )
        yield f"{packets} packet(s) refused or dropped in all; {probed} while Belljar probed a cell, {again} to places tried before or beyond the first hundred"
