"""Few descriptors: cells and ranges run with what a shell usually allows, and a host that allows
less is told so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.conftest import Belljar

pytestmark = pytest.mark.slow

RANGE = (
    "belljar: 1\nrisk: low\nnetwork: {stand_ins: {shop: {kind: http, names: [shop.example], routes:"
    " [{path: /, body: hello}]}}}\n"
)
MANY = """
import anyio, sys
from contextlib import AsyncExitStack
from belljar.cell.open import open_range
async def main():
    async with AsyncExitStack() as stack:
        for _ in range(int(sys.argv[2])):
            await stack.enter_async_context(open_range(sys.argv[1]))
        print("all stand", flush=True)
anyio.run(main)
"""


def limited(belljar: Belljar, limit: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """A program of this interpreter's under `ulimit LIMIT`."""
    return subprocess.run(
        ["/bin/sh", "-c", f'ulimit {limit}; exec "$@"', "sh", sys.executable, *argv],
        env=belljar.environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def policy(tmp_path: Path) -> str:
    """One with a network."""
    (tmp_path / "range.yaml").write_text(RANGE)
    return str(tmp_path / "range.yaml")


@pytest.mark.promise("1.3")
def test_a_soft_limit_stands_in_nobodys_way(belljar: Belljar, policy: str) -> None:
    """Neither of a cell's nor of a range's, whose gateway may have ten thousand connections."""
    shell = ["-m", "belljar", "exec"]
    assert limited(belljar, "-Sn 16", *shell, "low", "--", "echo", "hello").stdout == "hello\n"
    asked = limited(belljar, "-Sn 16", *shell, policy, "--", "curl", "-s", "http://shop.example")
    assert (asked.stdout, asked.stderr) == ("hello", "")
    assert belljar.leftovers() == []


@pytest.mark.promise("1.3")
def test_a_gateway_asks_for_no_more_than_it_may(belljar: Belljar, policy: str) -> None:
    """Under a hard limit it takes fewer connections, which the plan says; below what it needs
    itself the plan is refused."""
    asked = limited(
        belljar,
        "-n 700",
        "-m",
        "belljar",
        "exec",
        policy,
        "--",
        "curl",
        "-s",
        "http://shop.example",
    )
    assert (asked.stdout, asked.stderr) == ("hello", "")
    assert (
        "444 open at one time" in limited(belljar, "-n 700", "-m", "belljar", "plan", policy).stdout
    )
    refused = limited(belljar, "-n 300", "-m", "belljar", "exec", policy, "--", "true")
    assert refused.returncode == 3
    assert "Traceback" not in refused.stderr


@pytest.mark.promise("1.3")
def test_no_descriptors_left_is_the_hosts_fault(belljar: Belljar, policy: str) -> None:
    """On the command line and in the library: one error with a hint, and nothing is left of what
    had begun."""
    told = limited(belljar, "-n 16", "-m", "belljar", "exec", "low", "--", "true")
    assert told.returncode == 3
    assert "Traceback" not in told.stderr
    many = limited(belljar, "-n 600; ulimit -Sn 128", "-c", MANY, policy, "8")
    assert many.returncode == 1
    assert "belljar.errors.HostError: this process has no open files left" in many.stderr
    assert "all stand" in limited(belljar, "-n 600", "-c", MANY, policy, "8").stdout
    assert belljar("reap").returncode == 0
    assert belljar.leftovers() == []
