"""Probing a cell: recorded before and after, judged by what really came through, never raising for
what it finds."""

from __future__ import annotations

import anyio
import pytest
from tests.fakes.probing import PROBES, FakeProbed, dead, parameters, read_canary
from tests.fakes.recorder import MemoryRecorder

from belljar.events import Kind
from belljar.probe.judge import Router
from belljar.probe.model import Verdict
from belljar.probe.run import chosen, probe_cell

pytestmark = pytest.mark.anyio


def test_what_is_chosen() -> None:
    """`all`, `quick`, a group, names; a probe that never runs can't fail: refused."""
    assert chosen(PROBES, "all") == PROBES
    for which, names in (
        ("quick", ["files.canary", "files.socket", "calls.mount"]),
        (["fingerprint", "calls.mount"], ["calls.mount", "fingerprint.hypervisor"]),
    ):
        assert [probe.name for probe in chosen(PROBES, which)] == names
    with pytest.raises(ValueError, match="nonsense"):
        chosen(PROBES, ["nonsense"])


@pytest.mark.parametrize("has_port", [True, False])
async def test_a_cell_is_judged_with_its_router_or_not_at_all(has_port: bool) -> None:
    """A device without its router, or a router without a device: refused before any try."""
    router = Router(interface="eth0", mac="02:00:00:00:00:01")
    recorder, cell = MemoryRecorder(), FakeProbed(has_port=has_port)
    with pytest.raises(ValueError, match="router"):
        await probe_cell(
            cell, recorder=recorder, router=None if has_port else router, probes=PROBES
        )
    assert (recorder.events, cell.run_probe_program.asked) == ([], [])
    report = await probe_cell(
        cell, recorder=recorder, router=router if has_port else None, probes=PROBES
    )
    assert report.verdict is Verdict.CONTAINED


async def test_an_escape_is_seen_though_the_cell_denies_it() -> None:
    """The cell says `denied` and reads the canary: breached, by the host's word."""
    cell = FakeProbed()
    cell.run_probe_program.touch = read_canary
    report = await probe_cell(cell, recorder=MemoryRecorder(), probes=PROBES)
    assert report.verdict is Verdict.BREACHED
    assert [finding.name for finding in report.of(Verdict.BREACHED)] == ["files.canary"]


@pytest.mark.promise("7.3")
@pytest.mark.parametrize("trouble", ["dead", "cut", "late", "silent"])
async def test_no_evidence_is_void(trouble: str) -> None:
    """A dead cell, a cut output, no time or no word: void, on record with the reason."""
    recorder, cell = MemoryRecorder(), FakeProbed()
    program = cell.run_probe_program
    program.error = dead() if trouble == "dead" else None
    program.spoil = {"cut": lambda output: output[:-9], "silent": lambda _: b""}.get(
        trouble, program.spoil
    )
    program.timed_out = trouble == "late"
    report = await probe_cell(cell, recorder=recorder, probes=PROBES)
    assert report.verdict is Verdict.VOID
    assert report.problem
    assert recorder.events[-1].data["verdict"] == "void"


@pytest.mark.parametrize("verdict", ["void", "breached"])
async def test_cut_short_is_recorded_with_what_was_seen(verdict: str) -> None:
    """A cancelled run is void, or breached by what it had touched until then."""
    recorder, cell = MemoryRecorder(), FakeProbed()
    with anyio.CancelScope() as scope:

        async def hang(*args: object, input: bytes, **options: object) -> None:  # noqa: A002
            if verdict == "breached":
                read_canary(parameters(input))
            scope.cancel()
            await anyio.sleep_forever()

        cell.run_probe_program = hang  # type: ignore[assignment]
        await probe_cell(cell, recorder=recorder, probes=PROBES)
    assert scope.cancelled_caught
    assert (recorder.events[-1].kind, recorder.events[-1].data["verdict"]) == (
        Kind.PROBE_COMPLETED,
        verdict,
    )
