"""The guard's cases on real cells and gateways."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.guard_cases import read_cases, score
from tests.integration.conftest import Belljar
from tests.integration.guard_live import carry_out

from belljar.host.settings import resolve_here

pytestmark = [pytest.mark.vm, pytest.mark.slow]

CORPUS = Path(__file__).parents[1] / "security" / "guard"
WANTED = (
    *("enc-base64", "enc-base64-file", "http-header-body", "dns-hex-counted"),
    *("pass-names", "smtp-zip"),
)


@pytest.fixture
def anyio_backend() -> str:
    """One event loop is enough."""
    return "asyncio"


@pytest.mark.promise("5.7")
@pytest.mark.anyio
async def test_cases_are_carried_out_from_inside_cells(belljar: Belljar, tmp_path: Path) -> None:
    """Cases of each channel, some of which must not be flagged, and one that expects wrongly: each
    is found as the record of its own range has it."""
    lines = (CORPUS / "cases.jsonl").read_text().splitlines()
    cases = {json.loads(text)["id"]: text for text in lines}
    printed = next(text for name, text in cases.items() if '"output"' in text and '"flag"' in text)
    asked = next(text for name, text in cases.items() if '"model"' in text and '"flag"' in text)
    wrong = cases["enc-base64"].replace('"enc-base64"', '"wrong"').replace('"flag"', '"pass"')
    chosen = "\n".join([*(cases[name] for name in WANTED), printed, asked, wrong])
    (tmp_path / "customers.csv").write_bytes((CORPUS / "customers.csv").read_bytes())
    policy = tmp_path / "policy.yaml"
    policy.write_text((CORPUS / "policy.yaml").read_text().replace("risk: high", "risk: low"))
    outcomes, run = await carry_out(
        read_cases(chosen.encode()), resolve_here(policy), home=belljar.home
    )
    assert [failed.case.id for failed in score(outcomes).failed] == ["wrong"]
    assert belljar("ledger", "verify", str(run)).returncode == 0
    assert belljar.leftovers() == []
