"""The contract of every tier, run by an ordinary user: `tests/contract` in a process of his, with
ids and control groups that an administrator gave him."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration.as_user import REPOSITORY, UsersBelljar, copy_distributions, leaves_nothing
from tests.machine import TEMPLATES_VARIABLE

pytestmark = [pytest.mark.vm, pytest.mark.root, pytest.mark.slow]
CARRIERS = ("container-trio", "gvisor-asyncio", "microvm-asyncio")
WHOLE, ENDS_AND_LIMITS, ENDS = ("",), ("test_cell.py", "test_limits.py"), ("test_cell.py",)
SENSORS = "test_sensors.py"
# What the user changes is how a cell is made, bounded and ended; the channel through which it is
# used is the same. Files and least number of tests, by carrier.
CHOSEN = {
    "container-trio": ((*ENDS_AND_LIMITS, SENSORS), 42),
    "gvisor-asyncio": ((*ENDS_AND_LIMITS, SENSORS), 42),
    "microvm-asyncio": (ENDS, 8),
}
WITHIN_S = 550  # before the whole test is ended


@dataclass(frozen=True)
class Contract:
    """A run of the contract's tests by the user, and where what it says goes."""

    process: subprocess.Popen[bytes]
    said: Path


@pytest.fixture(scope="module")
def contracts(
    installed_with_groups: UsersBelljar, pytestconfig: pytest.Config
) -> Iterator[dict[str, Contract]]:
    """One run for each tier, all at once, for they mostly wait. When they have ended nothing of the
    user's is left."""
    user, running = installed_with_groups, dict[str, Contract]()
    checkout = copy_checkout(user)
    with leaves_nothing(user):
        try:
            for carrier in CARRIERS:
                files = WHOLE if pytestconfig.getoption("thorough") else CHOSEN[carrier][0]
                running[carrier] = start(user, checkout, carrier, files)
            yield running
        finally:
            for contract in running.values():
                end(contract.process)


def copy_checkout(user: UsersBelljar) -> Path:
    """The contract's tests with what they use, pytest's settings, and pytest, where the user can
    read them."""
    copy_distributions(["hypothesis", "pytest", "trio"], user.libraries)
    target, ignored = user.libraries.parent / "checkout", shutil.ignore_patterns("__pycache__")
    for part in ("contract", "fakes"):
        shutil.copytree(REPOSITORY / "tests" / part, target / "tests" / part, ignore=ignored)
    for file in ("tests/conftest.py", "tests/machine.py", "pyproject.toml"):
        shutil.copy(REPOSITORY / file, target / file)
    return target


def start(user: UsersBelljar, checkout: Path, carrier: str, files: Sequence[str]) -> Contract:
    """The contract's tests of these files on one carrier."""
    scratch = user.home.parent / f"contract-{carrier}"
    said = scratch.with_suffix(".txt")
    places = [
        f"--basetemp={scratch}",
        f"--rootdir={checkout}",
        "-c",
        str(checkout / "pyproject.toml"),
    ]
    argv = [
        user.python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--durations=5",
        *places,
    ]
    with said.open("wb") as file:
        process = user.start_into(
            [*argv, *(str(checkout / "tests/contract" / file) for file in files)],
            file.fileno(),
            PYTHONPATH=f"{user.libraries}:{checkout}",
            CONTRACT_CARRIERS=carrier,
            **{TEMPLATES_VARIABLE: str(user.home / "templates")},
        )
    return Contract(process, said)


def end(process: subprocess.Popen[bytes]) -> None:
    """As a person ends it, whose tests still end their cells; then for good."""
    for signal_ in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, signal_)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)


@pytest.mark.promise("1.3", "1.6")
@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_contract_holds_for_an_ordinary_user(
    contracts: dict[str, Contract], carrier: str
) -> None:
    """The contract is kept in every tier for a user who is not root (in the slow ones its ends, and
    in gVisor its limits; all of it when thorough): nothing is skipped for want of rights."""
    assert passed_in(contracts[carrier]) >= CHOSEN[carrier][1]


def passed_in(contract: Contract) -> int:
    """How many tests passed when it had ended; fails when one did not, or was skipped for want of
    rights."""
    try:
        contract.process.wait(timeout=WITHIN_S)
    finally:
        end(contract.process)
    said = contract.said.read_text(errors="replace")
    print(said)  # pytest shows it when something fails
    assert contract.process.returncode == 0, said[-4000:]
    assert "needs root" not in said
    return int(said.rpartition(" passed")[0].split()[-1])
