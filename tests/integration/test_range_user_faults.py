"""Faults of a range as an ordinary user meets them: what he lacks, with what gives it; nothing of
his is left."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.integration.as_user import REPOSITORY, UsersBelljar, copy_distributions, installed_for
from tests.integration.test_user_faults import NO_NAMESPACES, user_refused

pytestmark = [pytest.mark.vm, pytest.mark.root]
_POLICY = (
    "belljar: 1\nrisk: low\nnetwork:\n  stand_ins:\n    a: {kind: http, names: [a.example], routes:"
    " [{path: /}]}\n"
)


@pytest.fixture(scope="module")
def user(prepared_home: Path, ordinary_user: tuple[int, int]) -> Iterator[UsersBelljar]:
    """An ordinary user with a store of his own and the extras `network` and `stand-ins`."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    with installed_for(prepared_home, *ordinary_user) as installed:
        copy_distributions([*extras["network"], *extras["stand-ins"]], installed.libraries)
        yield installed


@pytest.fixture
def command(user: UsersBelljar) -> Sequence[str]:
    """`belljar exec` of a policy with a network, which he can read."""
    policy = user.libraries.parent / "p.yaml"
    policy.write_text(_POLICY)
    return ("exec", str(policy), "--", "true")


@pytest.mark.promise("1.3")
def test_a_user_without_subordinate_ids(
    user: UsersBelljar, command: Sequence[str], tmp_path: Path
) -> None:
    """In whatever tier: a range's namespace needs them."""
    empty = tmp_path / "empty"
    empty.touch(mode=0o644)
    hidden = (f"mount --bind {empty} /etc/subuid", f"mount --bind {empty} /etc/subgid")
    said = user_refused(user, *hidden, command=command)
    assert "a range's network needs ids of its own: " in said
    assert "has no 65,536 subordinate ids in /etc/subuid or /etc/subgid" in said
    assert "usermod --add-subuids" in said


@pytest.mark.promise("1.3")
def test_a_user_who_may_make_no_user_namespace(user: UsersBelljar, command: Sequence[str]) -> None:
    """The switch that forbids it, and the command that puts it."""
    argv = [user.python, "-c", NO_NAMESPACES, str(user.uid), str(user.gid), *user.argv(*command)]
    said = user_refused(user, argv=argv)
    assert (
        "a range's network needs user namespaces, which this user can't make:"
        " user.max_user_namespaces is 0" in said
    )
    assert "as root: sysctl -w user.max_user_namespaces=" in said
