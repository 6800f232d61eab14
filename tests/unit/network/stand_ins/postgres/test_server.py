"""The stand-in on a stream, and a real client of it."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from tests.fakes.registries import Ledger, served_service

from belljar.network.stand_ins.postgres import make
from belljar.policy.guarding import DecoyKind, DecoySpec
from belljar.signals.credentials import KEY_BYTES
from belljar.signals.decoy_services import MintedService
from belljar.signals.decoys import mint_service

PSQL = shutil.which("psql")


@pytest.fixture
def service() -> MintedService:
    """As it is made for a range."""
    spec = DecoySpec(id="crm", kind=DecoyKind.POSTGRES, place="127.0.0.1")
    made = mint_service(b"k" * KEY_BYTES, "range", spec).service
    assert made is not None
    return made


@pytest.mark.skipif(PSQL is None, reason="psql (Debian: postgresql-client) is not installed")
def test_the_real_client_logs_in(service: MintedService) -> None:
    """psql logs in with the URL of its file, and is refused what it asks; a wrong password is
    refused. What it presented and asked is on record."""
    ledger = Ledger()
    with served_service(make, service.settings, ledger) as port:
        url = service.login.url.replace(":5432", f":{port}")

        def psql(address: str, command: str) -> subprocess.CompletedProcess[str]:
            argv = [str(PSQL), "-X", "-w", "-A", "-t", "-c", command, address]
            return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)

        for asked in (r"\dt", "select count(*) from customers where card like '9999%'"):
            assert "permission denied" in psql(url, asked).stderr
        wrong = psql(url.replace(service.login.password, "guess"), "select 1")
        assert "password authentication failed" in wrong.stderr
    logins = [
        (event["operation"], event["ok"], bodies[0].content)
        for event, bodies in zip(ledger.attempts, ledger.bodies, strict=True)
        if event["what"] == "login"
    ]
    password = service.login.password.encode() + b"\0"
    assert logins == [
        ("postgres.password", True, password),
        ("postgres.password", True, password),
        ("postgres.password", False, b"guess\0"),
    ]
    assert any(b"like '9999%'" in bodies[0].content for bodies in ledger.bodies)
