"""Each witness of the host's is silent when nothing comes, and sees it when something does."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.fakes.probing import kill_sentinel, read_canary, signal_sentinel, visit, write_canary

from belljar.probe.judge import Router
from belljar.probe.model import Witness
from belljar.probe.witness import sweep_watches, watch, watch_file

UNIX, INET, STREAM = socket.AF_UNIX, socket.AF_INET, socket.SOCK_STREAM
LAID_OUT = [each for each in Witness if each is not Witness.NAMESPACES]
TOUCHES: list[tuple[Witness, Callable[[dict[str, str]], object]]] = [
    (Witness.CANARY, read_canary),
    (Witness.CANARY, write_canary),
    (Witness.CANARY, lambda given: Path(given["canary"]).unlink()),
    (Witness.CANARY, lambda given: Path(given["canary"]).chmod(0o600)),
    (Witness.CANARY, lambda given: os.close(os.open(given["canary"], os.O_RDONLY))),
    (Witness.CANARY, lambda given: Path(given["canary"]).replace(f"{given['canary']}.moved")),
    (Witness.PID, signal_sentinel),
    (Witness.PID, kill_sentinel),
    (Witness.SOCKET, visit(UNIX, STREAM, lambda given: given["socket"])),
    (Witness.ABSTRACT, visit(UNIX, STREAM, lambda given: "\0" + given["abstract"])),
    (Witness.TCP, visit(INET, STREAM, lambda given: ("127.0.0.1", int(given["tcp"])))),
    (Witness.TCP6, visit(socket.AF_INET6, STREAM, lambda given: ("::1", int(given["tcp6"])))),
    (Witness.UDP, visit(INET, socket.SOCK_DGRAM, lambda given: ("127.0.0.1", int(given["udp"])))),
]


def test_silence() -> None:
    """With nothing touched every witness says so; afterwards all of them are gone."""
    with watch(LAID_OUT) as watched:
        given = dict(watched.parameters)
        assert set(given) == {*Witness, "nonce", "token"} - {Witness.NAMESPACES, Witness.ROUTER}
        assert {
            witness: sight.touched for witness, sight in watched.look().items()
        } == dict.fromkeys(LAID_OUT, False)
    assert not Path(given["canary"]).parent.exists()
    assert not Path("/proc", given["pid"]).exists()


def test_a_late_close_of_the_writer_is_no_touch(tmp_path: Path) -> None:
    """A child that was forked meanwhile closes its copy by execve after the watch began."""
    file = tmp_path / "notes.txt"
    with file.open("wb") as writer, watch_file(file) as happened:
        writer.close()
        assert not happened()


@pytest.mark.promise("4.6")
@pytest.mark.parametrize(("witness", "touch"), TOUCHES)
def test_touched(witness: Witness, touch: Callable[[dict[str, str]], object]) -> None:
    """What an escape would do to it is seen, and only there."""
    with watch(LAID_OUT) as watched:
        touch(dict(watched.parameters))
        seen = {each for each, sight in watched.look().items() if sight.touched}
    assert seen == {witness}


def test_what_can_not_be_laid_out_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host without room for a process the witness is blind, which is no silence."""
    full = Mock(side_effect=BlockingIOError(errno.EAGAIN, "no room"))
    monkeypatch.setattr("belljar.probe.witness.os.posix_spawn", full)
    with watch([Witness.PID]) as watched:
        assert watched.look()[Witness.PID].touched is None


def test_a_stranger_is_neither_breach_nor_silence() -> None:
    """Who knocks without the token may be any process: neither touched nor silent."""
    with watch([Witness.TCP]) as watched:
        socket.create_connection(("127.0.0.1", int(watched.parameters["tcp"]))).close()
        assert watched.look()[Witness.TCP].touched is None


APART = ("--user", "--mount", "--pid", "--ipc", "--uts", "--cgroup", "--fork")


def child_of(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


@pytest.mark.promise("4.6")
@pytest.mark.root
def test_a_process_that_may_be_the_hosts_root() -> None:
    """In namespaces of its own, but with the host's user 0 among its ids: seen."""
    argv = ["unshare", "--map-root-user", *APART, "--net", "sh", "-c", "echo up; read go"]
    with subprocess.Popen(argv, stdin=-1, stdout=-1) as process:
        with watch([Witness.NAMESPACES], host_pid=child_of(process)) as watched:
            sight = watched.look()[Witness.NAMESPACES]
        process.communicate(b"\n")
    assert sight.touched
    assert "user 0" in sight.what


@pytest.mark.root
def test_a_device_of_the_ports_name_counts_as_it_only_where_the_port_was_put() -> None:
    """It leads to the range's router in the port's namespace; in any other it is a way out."""
    make = (
        "ip link add eth0 type veth peer name up0 && ip link set up0 up && ip link set eth0 up &&"
        " ip route add default dev eth0"
    )
    shut_in = f"exec unshare {' '.join(APART)} sh -c 'echo up; read go'"
    argv = ["unshare", "--net", "sh", "-c", f"{make} && {shut_in}"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as made:
        child = child_of(made)
        number = Path(f"/proc/{child}/ns/net").stat().st_ino
        seen = {}
        for namespace in (number, number + 1, None):
            router = Router(
                interface="eth0", namespace=partial(int, namespace) if namespace else lambda: None
            )
            with watch([Witness.NAMESPACES], host_pid=child, router=router) as watched:
                seen[namespace] = watched.look()[Witness.NAMESPACES].what
        made.communicate(b"\n")
    assert "a route by eth0" not in seen.pop(number)
    assert all("a route by eth0" in what for what in seen.values())


def test_what_a_killed_owner_left_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next sweep removes a killed owner's directory, and none of a living process."""
    script = (
        "import os\nfrom belljar.probe.witness import watch\nfrom belljar.probe.model import"
        " Witness\nwith watch([Witness.CANARY, Witness.PID]) as w:\n print(w.parameters['canary'],"
        " w.parameters['pid'], flush=True)\n os.kill(os.getpid(), 9)"
    )
    tmp_path.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    left = Path(done.stdout.split()[0]).parent
    with watch([Witness.CANARY]) as living:
        canary = Path(living.parameters["canary"])
        assert not left.exists()  # a watch sweeps first
        assert str(canary.parent) not in sweep_watches()  # others' dead may lie there too
        assert canary.exists()


@pytest.mark.root
def test_a_watch_in_another_pid_namespace_is_not_swept() -> None:
    """It shares /tmp; its process number means nothing outside."""
    script = (
        "from belljar.probe.witness import watch\nfrom belljar.probe.model import Witness\n"
        "with watch([Witness.CANARY]) as w:\n"
        " print(w.parameters['canary'], flush=True)\n input()\n"
        " print(w.look()[Witness.CANARY].touched)"
    )
    argv = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as inside:
        assert inside.stdin is not None
        assert inside.stdout is not None
        canary = Path(inside.stdout.readline().strip())
        assert str(canary.parent) not in sweep_watches()
        inside.stdin.write("\n")
        inside.stdin.flush()
        assert inside.stdout.readline() == "False\n"
    assert not canary.exists()
