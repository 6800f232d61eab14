"""Control groups handed to an ordinary user, as an administrator (or systemd) does it: without them
he gets no container and no gVisor."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from belljar.host.cgroups import CONTROLLERS, Hierarchies, parse_hierarchies

# A process can be put into a group of version 2 only by who may write in the groups above both: so
# root does it, and becomes the user then.
_ENTER = (
    'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@"'
)


@dataclass(frozen=True)
class HandedGroups:
    """`joined`: what his processes are put in. `owned`: all that is his, those above first."""

    joined: tuple[Path, ...]
    owned: tuple[Path, ...]

    def enter(self, argv: Sequence[str], *, uid: int, gid: int) -> list[str]:
        """Root's command line for the user's program in his groups; its pid is the program's."""
        become = [
            "setpriv",
            f"--reuid={uid}",
            f"--regid={gid}",
            "--clear-groups",
            "--inh-caps=-all",
        ]
        return ["/bin/sh", "-c", _ENTER, "sh", *map(str, self.joined), "--", *become, *argv]

    def cells(self) -> list[str]:
        return sorted(
            {str(path) for top in self.owned if top.is_dir() for path in top.glob("**/cell-*")}
        )


@contextlib.contextmanager
def handed_groups(name: str, uid: int, gid: int) -> Iterator[HandedGroups]:
    """One group of the user's in each hierarchy; removed afterwards. Skips where even root can't
    make one. A group of a cell that is left in them is a failure."""
    hierarchies = parse_hierarchies(
        Path("/proc/self/mounts").read_text(), Path("/proc/self/cgroup").read_text()
    )
    groups = _planned(hierarchies, name)
    try:
        for directory in groups.owned:
            _hand_over(directory, uid, gid)
    except OSError as exc:
        _remove(groups.owned)
        pytest.skip(f"no control group can be handed to a user here: {exc}")
    try:
        yield groups
        assert groups.cells() == [], "groups of cells are left"
    finally:
        _remove(groups.owned)


def _planned(found: Hierarchies, name: str) -> HandedGroups:
    if all(controller in found.v1 for controller in CONTROLLERS):
        places = tuple(dict.fromkeys(found.v1[controller] / name for controller in CONTROLLERS))
        return HandedGroups(joined=places, owned=places)
    if found.v2 is None:
        pytest.skip("this host mounts no control groups")
    # A group that holds processes hands on no controllers: his processes go one deeper, his cells
    # beside them.
    top = found.v2 / name
    return HandedGroups(joined=(top / "shell",), owned=(top, top / "shell"))


def _hand_over(directory: Path, uid: int, gid: int) -> None:
    """The directory, and the files that move processes and hand on controllers."""
    control = directory.parent / "cgroup.subtree_control"
    if control.exists():
        control.write_text(" ".join(f"+{controller}" for controller in CONTROLLERS))
    directory.mkdir()
    for path in (
        directory,
        *(
            directory / name
            for name in ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads", "tasks")
        ),
    ):
        if path.exists():
            os.chown(path, uid, gid)


def _remove(owned: Sequence[Path]) -> None:
    for top in owned:
        for directory in sorted(top.glob("**/"), key=lambda path: -len(path.parts)):
            with contextlib.suppress(OSError):
                directory.rmdir()
