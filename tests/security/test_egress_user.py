"""The same ways out of ranges that belong to an ordinary user: his supervisor, gateway and cells
have no right of root's, and hold all the same. See docs/egress.md.

He opens the ranges, forges frames at their ports and strikes them himself. The host's own ears are
root's.
"""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.as_user import REPOSITORY, UsersBelljar, copy_distributions, installed_for
from tests.integration.handed_groups import handed_groups
from tests.integration.processes import wait_for
from tests.security import test_egress as root
from tests.security.egress.scene import World, look_as_user
from tests.security.egress.table import CASES

pytestmark = [pytest.mark.root, pytest.mark.vm]
_SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def takes(test: Callable[..., None]) -> list[str]:
    """The names of its parameters."""
    return list(inspect.signature(test).parameters)


SAME = [
    test
    for name, test in vars(root).items()
    if name.startswith("test_") and takes(test) == ["world"]
]
"""What `test_egress` asks of a whole world."""


@pytest.fixture(scope="module")
def user(prepared_home: Path, ordinary_user: tuple[int, int]) -> Iterator[UsersBelljar]:
    """An ordinary user with control groups of his own, the extras `network` and `stand-ins`, and the program that
    opens the ranges."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    with (
        installed_for(prepared_home, *ordinary_user) as installed,
        handed_groups(f"e{installed.uid}-{os.getpid()}", installed.uid, installed.gid) as groups,
    ):
        copy_distributions([*extras["network"], *extras["stand-ins"]], installed.libraries)
        shutil.copytree(
            REPOSITORY / "tests/security/egress", installed.libraries / "tests/security/egress"
        )
        (installed.libraries / "tests/fakes").mkdir()
        shutil.copy(REPOSITORY / "tests/fakes/pcapng.py", installed.libraries / "tests/fakes")
        yield replace(installed, groups=groups)


@pytest.fixture(scope="module", params=["container", "gvisor"])
def world(request: pytest.FixtureRequest, user: UsersBelljar) -> World:
    """What the host saw of a user's three ranges in a tier; nothing of his is left."""

    def start() -> subprocess.Popen[bytes]:
        argv = [user.python, "-m", "tests.security.egress.play"]
        return user.start_program(argv, subprocess.PIPE, {"PATH": _SEARCH})

    folder = user.home.parent / f"policies-{request.param}"
    folder.mkdir()
    os.chown(folder, user.uid, user.gid)
    made = look_as_user(request.param, user.home, folder, start)
    wait_for(lambda: not user.processes(), "the end of the user's processes")
    assert user.left() == []
    assert {run.stat().st_uid for run in user.runs()} == {user.uid}
    return made


@pytest.mark.promise("2.5")
@pytest.mark.thorough_in("gvisor")
def test_every_way_out_is_closed_to_a_users_cells_and_on_record(world: World) -> None:
    """Each case of the table ends as it says, and the host has seen it; what is asked of a whole
    world below is not nothing."""
    assert len(SAME) >= 9
    assert {case.name: lack for case in CASES if (lack := world.lacks(case))} == {}


@pytest.mark.parametrize("same", SAME, ids=lambda same: same.__name__)
@pytest.mark.thorough_in("gvisor")
def test_as_of_roots_ranges(world: World, same: Callable[[World], None]) -> None:
    """What `test_egress` says of root's ranges."""
    same(world)
