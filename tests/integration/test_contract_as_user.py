"""The contract of every tier, run by an ordinary user."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.integration.as_user import REPOSITORY, UsersBelljar, copy_distributions

pytestmark = [pytest.mark.vm, pytest.mark.root, pytest.mark.slow]
CARRIERS = ("container-trio", "gvisor-asyncio", "microvm-asyncio")
# What the user changes is how a cell is made, bounded and ended, and who watches a decoy. What the
# kernel counts as a group's memory isn't the user's to change. Cells of the other tiers are made by
# a user in `test_user_in_tiers` and `test_ordinary_user`.
FILES = ("cell", "limits", "sensors")
CHOSEN = "container and not (kernels_memory or works or shm or inode)"
FEWEST = 20
WITHIN_S = 550  # before the whole test is ended


@pytest.fixture(scope="module")
def checkout(installed_with_groups: UsersBelljar) -> Path:
    """The contract's tests, pytest and its settings, where the user can read them."""
    user = installed_with_groups
    copy_distributions(["hypothesis", "pytest", "trio"], user.libraries)
    target, ignored = user.libraries.parent / "checkout", shutil.ignore_patterns("__pycache__")
    for part in ("contract", "fakes"):
        shutil.copytree(REPOSITORY / "tests" / part, target / "tests" / part, ignore=ignored)
    for file in ("tests/conftest.py", "tests/machine.py", "pyproject.toml"):
        shutil.copy(REPOSITORY / file, target / file)
    return target


@pytest.mark.promise("1.3", "1.6")
@pytest.mark.parametrize(
    "carriers",
    [CARRIERS[:1], pytest.param(CARRIERS, marks=pytest.mark.thorough)],
    ids=["part", "all"],
)
def test_the_contract_holds_for_an_ordinary_user(
    grouped: UsersBelljar, checkout: Path, carriers: tuple[str, ...]
) -> None:
    """Nothing is skipped for want of rights, or left behind."""
    is_part, tests = len(carriers) == 1, checkout / "tests/contract"
    chosen = ["-k", CHOSEN, *(str(tests / f"test_{name}.py") for name in FILES)]
    ran = grouped.run(
        [
            # SIGINT first, as a person ends it: its tests then still end their cells.
            *("timeout", "--signal=INT", "--kill-after=60", str(WITHIN_S)),
            *(grouped.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5"),
            f"--basetemp={grouped.home.parent / f'contract-{carriers[0]}'}",
            f"--rootdir={checkout}",
            *("-c", str(checkout / "pyproject.toml")),
            *(chosen if is_part else [str(tests)]),
        ],
        timeout_s=WITHIN_S + 100,
        PYTHONPATH=f"{grouped.libraries}{os.pathsep}{checkout}",
        CONTRACT_CARRIERS=" ".join(carriers),
        BELLJAR_TEST_TEMPLATES=str(grouped.home / "templates"),
    )
    said = ran.stdout.decode(errors="replace")
    print(said)  # pytest shows it when something fails
    assert ran.returncode == 0, said[-4000:]
    assert "needs root" not in said
    assert int(said.rpartition(" passed")[0].split()[-1]) >= (FEWEST if is_part else 1)
