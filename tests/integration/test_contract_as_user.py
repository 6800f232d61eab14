"""The contract of every tier, run by an ordinary user: `tests/contract` in a process of his, with
ids and control groups that an administrator gave him."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.integration.as_user import REPOSITORY, UsersBelljar, copy_distributions

pytestmark = [pytest.mark.vm, pytest.mark.root, pytest.mark.slow]
CARRIERS = ("container-trio", "gvisor-asyncio", "microvm-asyncio")
# What the user changes is how a cell is made, bounded and ended, who watches a decoy, and in a
# virtual machine who owns the channel's socket, through which commands and files pass. What the
# kernel counts as a group's memory isn't the user's to change, and all machines here are of one
# size: the user's own template takes long to boot.
FILES = ("cell", "limits", "sensors")
CHOSEN = (
    "container and not (kernels_memory or works or shm or inode)"
    " or gvisor and limits and (fork_bomb or takes or tmp or time_of or open_files)"
    " or microvm and not sensors and (policys_defaults or death or destroying or tmp or time_of)"
)
FEWEST = 40
WITHIN_S = 550  # before the whole test is ended


@pytest.fixture(scope="module")
def checkout(installed_with_groups: UsersBelljar) -> Path:
    """The contract's tests with what they use, pytest's settings, and pytest, where the user can
    read them."""
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
    [CARRIERS, *(pytest.param((one,), marks=pytest.mark.thorough) for one in CARRIERS)],
    ids=" ".join,
)
def test_the_contract_holds_for_an_ordinary_user(
    grouped: UsersBelljar, checkout: Path, carriers: tuple[str, ...]
) -> None:
    """The contract is kept in every tier for a user who is not root (its parts that a user could
    change; all of it when thorough): nothing is skipped for want of rights or left behind."""
    is_part, tests = len(carriers) > 1, checkout / "tests/contract"
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
