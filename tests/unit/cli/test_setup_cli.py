"""`belljar setup`: what is planned for every kind of host, and what is never begun."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from belljar.cli.main import run
from belljar.cli.setup import (
    BACKPORTS_FILE,
    HostState,
    SetupPlan,
    host_state,
    needs,
    plan_setup,
)
from belljar.errors import HostError
from belljar.image.apt import AptSource, parse_sources
from belljar.image.config import debian_arch

MAIN = AptSource(
    uri="http://mirror.invalid/debian", suites=("bookworm", "bookworm-updates"), signed_by="/k.gpg"
)
BARE = HostState(
    distribution="debian",
    codename="bookworm",
    pretty_name="Debian GNU/Linux 12 (bookworm)",
    is_root=True,
    debian_arch="amd64",
    tools=frozenset(),
    sources=(MAIN,),
)
ALL_TOOLS = frozenset(need.command for need in needs("amd64"))
READY = replace(BARE, tools=ALL_TOOLS, kernel="6.12", images=frozenset({"default"}))


def kinds(plan: SetupPlan) -> list[str]:
    """The kinds of the steps, in order."""
    return [step.kind for step in plan.steps]


def test_a_bare_debian_12_gets_backports_tools_kernel_and_image() -> None:
    """Root on a fresh Debian 12: the suite in a file of its own, lists, newer packages from it, the
    others, kernel, image."""
    plan = plan_setup(BARE)
    assert kinds(plan) == ["write", "run", "run", "run", "kernel", "image"]
    suite, _, newer, plain = plan.steps[:4]
    assert parse_sources(suite.detail, deb822=True) == [
        replace(MAIN, suites=("bookworm-backports",))
    ]
    assert newer.command.endswith("-t bookworm-backports qemu-system-x86 runsc")
    assert plain.command == (
        "apt-get -q -y install --no-install-recommends"
        " mmdebstrap nftables runc skopeo squashfs-tools uidmap zstd"
    )
    assert not plan.problems


def test_buildah_is_installed_when_it_is_asked_for() -> None:
    """`--with build` plans buildah's package; without it a host without buildah is ready."""
    state = replace(READY, tools=ALL_TOOLS - {"buildah"})
    assert plan_setup(state) == SetupPlan()
    install = plan_setup(state, parts=frozenset({"build"})).steps[-1]
    assert install.command.endswith(" buildah")
    as_user = plan_setup(replace(state, is_root=False), parts=frozenset({"build"}))
    assert "buildah" in as_user.problems[0].hint


def test_a_suite_that_is_there_is_not_added_twice() -> None:
    """Whoever added backports, in whichever file: it is used as it is."""
    state = replace(BARE, sources=(MAIN, replace(MAIN, suites=("bookworm-backports",))))
    assert kinds(plan_setup(state))[:1] == ["run"]


def test_a_ready_host_has_nothing_to_do() -> None:
    """The second run plans no step, so it takes no time."""
    assert plan_setup(READY) == SetupPlan()
    assert kinds(plan_setup(READY, images=("default", "debian-dev"))) == ["image"]
    assert kinds(plan_setup(READY, refresh=True)) == ["kernel", "image"]


@pytest.mark.parametrize(
    ("says", "fine"),
    [("7.2.1", False), ("8.1", False), ("8.2", True), ("10.0", True), ("?", False)],
)
def test_an_old_qemu_counts_as_missing(
    says: str, fine: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian 12's own QEMU 7.2 is too old; 8.2 is not, nor 10.0."""
    qemu = tmp_path / next(need.command for need in needs(debian_arch()) if need.least_version)
    qemu.write_text(f"#!/bin/sh\necho QEMU emulator version {says}\n")
    qemu.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert (qemu.name in host_state(tmp_path / "store").tools) is fine


def test_an_ordinary_user_is_told_the_commands_for_root() -> None:
    """Without root nothing is installed; the exact commands are said, and what a user can do is
    planned."""
    plan = plan_setup(replace(BARE, is_root=False))
    assert kinds(plan) == ["kernel"]
    assert (
        "apt-get -q -y install --no-install-recommends -t bookworm-backports qemu-system-x86 runsc"
        in plan.problems[0].hint
    )
    assert BACKPORTS_FILE in plan.problems[0].hint
    able = replace(BARE, is_root=False, tools=frozenset(("mmdebstrap", "sqfstar")))
    assert kinds(plan_setup(able)) == ["kernel", "image"]


def test_another_distribution_is_told_what_is_missing_and_nothing_is_begun() -> None:
    """Elsewhere: every missing tool by name, and no step at all."""
    fedora = replace(BARE, distribution="fedora", codename="", pretty_name="Fedora Linux 42")
    plan = plan_setup(replace(fedora, sources=()))
    assert not plan.steps
    assert "qemu-system-x86 runc" in plan.problems[0].hint
    assert "Fedora Linux 42" in plan.problems[0].what
    assert all(
        need.command in plan.problems[0].what for need in needs("amd64") if not need.only_with
    )


def test_another_distribution_with_all_tools_still_needs_a_mirror() -> None:
    """With the tools there, kernel and image can be made, if a Debian mirror is named."""
    state = replace(
        READY, distribution="fedora", codename="", sources=(), kernel="", images=frozenset()
    )
    with pytest.raises(HostError, match="no Debian mirror"):
        plan_setup(state)
    plan = plan_setup(state, mirror="http://mirror.invalid/debian")
    assert kinds(plan) == ["kernel", "image"]


def test_debian_13_needs_no_other_suite_and_debian_11_is_too_old() -> None:
    """Debian 13 has everything itself; Debian 11 is refused."""
    trixie = plan_setup(replace(BARE, codename="trixie"))
    assert kinds(trixie) == ["run", "run", "kernel", "image"]
    assert " -t " not in trixie.steps[1].command
    bullseye = plan_setup(replace(BARE, codename="bullseye"))
    assert not bullseye.steps
    assert "Debian 12 or 13" in bullseye.problems[0].what


def test_too_little_space_is_said_before_anything_is_begun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk: an error that names both sizes, and setup does no step."""
    full = replace(BARE, free_bytes=1 << 20)
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path / "store"))
    monkeypatch.setattr("belljar.cli.setup.host_state", lambda _home: full)
    assert run(["setup", "--yes", "--json"]) == 3
    assert "1 MiB is free" in capsys.readouterr().out
    assert not (tmp_path / "store").exists()


def test_setup_does_nothing_when_it_only_looks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--dry-run` and `--json` without `--yes` show the plan and make not even the store."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path / "store"))
    monkeypatch.setattr("belljar.cli.setup.host_state", lambda _home: BARE)
    assert run(["setup", "--dry-run"]) == 0
    assert "1. Add the suite bookworm-backports" in capsys.readouterr().out
    assert run(["setup", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert [step["done"] for step in document["steps"]] == [False] * 6
    assert not (tmp_path / "store").exists()


def test_a_failing_tool_names_the_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step that fails ends setup with exit code 3, the tool's last words and the log's path;
    later steps are not begun."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path / "store"))
    state = replace(BARE, sources=(replace(MAIN, suites=("bookworm", "bookworm-backports")),))
    monkeypatch.setattr("belljar.cli.setup.host_state", lambda _home: state)
    script = tmp_path / "apt-get"
    script.write_text(
        '#!/bin/sh\necho "$@" >> "$0.calls"\necho E: the mirror is gone >&2\nexit 100\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert run(["setup", "--yes"]) == 3
    error = capsys.readouterr().err
    assert "the mirror is gone" in error
    assert "setup.log" in error
    assert len((tmp_path / "apt-get.calls").read_text().splitlines()) == 1
    assert "the mirror is gone" in (tmp_path / "store/setup.log").read_text()


def test_nobody_to_ask_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a terminal and without `--yes`, nothing is begun."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path / "store"))
    monkeypatch.setattr("belljar.cli.setup.host_state", lambda _home: BARE)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert run(["setup"]) == 2
    assert not (tmp_path / "store").exists()
