"""Faults of a range as a user meets them: what, where and what to do; the documented exit code;
nothing is left; what is on record verifies."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.conftest import Belljar
from tests.integration.processes import wait_for
from tests.integration.remains import below
from tests.integration.test_tier_faults import Host

from belljar.errors import HostError
from belljar.network.owner.processes import ForkServer

pytestmark = [pytest.mark.vm, pytest.mark.root]
_HEAD = "belljar: 1\nrisk: low\nuser: root\nnetwork:\n  stand_ins:\n"
_SITE = (
    "    site: {kind: http, names: [shop.example], ports: [80], routes: [{path: /, body: hello}]}\n"
)
FETCH = ("curl", "-s", "http://shop.example/")
_HALF = (
    "import socket, time\n"
    "half = socket.create_connection(('shop.example', 80))\n"
    "half.sendall(b'GET / HTTP/1.1\\r\\nHost: shop')\n"
    "print('half', flush=True)\n"
    "time.sleep(600)\n"
)
"""A guest that has sent half a request, says so, and waits."""


@pytest.fixture
def host(home: Path, tmp_path: Path) -> Host:
    """This host, with the session's store."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return Host(Belljar(home), scratch)


@pytest.fixture
def policy(tmp_path: Path) -> Callable[..., str]:
    """Writes a policy with these stand-ins, and files beside it."""

    def write(stand_ins: str = _SITE, **files: str) -> str:
        (tmp_path / "own").mkdir()
        for name, text in files.items():
            (tmp_path / "own" / name.replace("_", ".")).write_text(text)
        (tmp_path / "p.yaml").write_text(_HEAD + stand_ins)
        return str(tmp_path / "p.yaml")

    return write


def refused(
    host: Host,
    policy: str,
    *,
    code: int,
    mounts: tuple[str, ...] = (),
    command: tuple[str, ...] = FETCH,
    **extra: str,
) -> str:
    """What `exec` says when it can't: once, with a hint, on record; and nothing is left."""
    before = len(host.belljar.runs())
    ran = host.run("exec", policy, "--", *command, mounts=mounts, **extra)
    said = ran.stderr.decode()
    assert (ran.returncode, ran.stdout) == (code, b""), said
    told_and_gone(host, said, before)
    return said


def told_and_gone(host: Host, said: str, runs_before: int) -> None:
    """No traceback, a hint, and of the run only its record."""
    assert "Traceback" not in said
    assert "\n  hint: " in said
    (run,) = host.belljar.runs()[runs_before:]
    host.check(run)


def kinds(host: Host, runs_before: int) -> list[str]:
    """The events of the run that is new, as far as they are written."""
    with contextlib.suppress(OSError, ValueError):
        return [
            str(event["kind"])
            for run in host.belljar.runs()[runs_before:]
            for event in host.belljar.events(run)
        ]
    return []


# ---- what the host lacks


@pytest.mark.promise("1.3")
def test_no_nft(host: Host, policy: Callable[..., str]) -> None:
    """Named, with the package; before anything is made."""
    hidden = [
        f"mount --bind /dev/null {path}"
        for path in ("/usr/sbin/nft", "/sbin/nft")
        if Path(path).exists()
    ]
    said = refused(host, policy(), code=3, mounts=tuple(hidden[:1]))
    assert "nft is missing" in said
    assert "install nftables" in said


@pytest.mark.promise("1.3")
@pytest.mark.parametrize("tier", ["container", "gvisor", "microvm"])
def test_neither_tun_nor_ip_is_needed(tier: str, host: Host, policy: Callable[..., str]) -> None:
    """Links are made without the program `ip`, and a virtual machine's frames go through a socket
    pair."""
    hidden = [
        f"mount --bind /dev/null {path}"
        for path in ("/usr/sbin/ip", "/usr/bin/ip")
        if Path(path).is_file()
    ]
    patient = replace(host, timeout_s=600)
    ran = patient.run(
        "exec",
        policy(),
        "--tier",
        tier,
        "--",
        *FETCH,
        mounts=[*hidden[:1], "mount -t tmpfs none /dev/net"],
    )
    assert (ran.returncode, ran.stdout) == (0, b"hello"), ran.stderr
    host.check(host.belljar.runs()[-1])


@pytest.mark.promise("1.3")
def test_ports_that_the_host_has_taken_are_no_matter(
    host: Host, policy: Callable[..., str]
) -> None:
    """A range listens in a namespace of its own: on port 80 and 53 whoever has them here."""
    with contextlib.ExitStack() as stack:
        for port in (80, 53):
            taken = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # taken already: as good
                taken.bind(("0.0.0.0", port))  # noqa: S104 - so that a range would meet it
                taken.listen()
        ran = host.run("exec", policy(), "--", *FETCH)
    assert (ran.returncode, ran.stdout) == (0, b"hello"), ran.stderr


_TAKEN = """\
import socket
from belljar.network.supervisor.main import open_listeners
from belljar.plan.addresses import lay_out
from belljar.plan.network import NetworkPlan, PortPlan, StandInPlan
network = NetworkPlan(stand_ins=(StandInPlan(id="a", kind="http", names=("a.example",), ports=(PortPlan(number=80, protocol="http"),)),))
layout = lay_out(network, ("agent",), random_bytes=bytes(64), avoid=())
import subprocess
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["ip", "address", "add", layout.resolver, "dev", "lo"], check=True)
taken = socket.create_server(("0.0.0.0", 80))
try:
    open_listeners(layout, network)
except OSError as error:
    print(error.filename, error.strerror)
"""


def test_a_port_that_is_taken_in_the_range_is_named() -> None:
    """By its number, in the supervisor's words."""
    ran = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", _TAKEN],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout == "port 80 of the range Address already in use\n", ran.stderr


# Root of a user namespace that has every id; so many network namespaces may be made in it, and one
# there is.
_LIMITED = """\
import ctypes, os, subprocess, sys
most, *argv = sys.argv[1:]
parent_read, child_write = os.pipe()
child_read, parent_write = os.pipe()
pid = os.fork()
if pid:
    os.read(parent_read, 1)
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write("0 0 4294967295\\n")
    os.write(parent_write, b"g")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000):
    raise OSError(ctypes.get_errno(), "unshare")
os.write(child_write, b"r")
os.read(child_read, 1)
if libc.unshare(0x00020000 | 0x40000000):
    raise OSError(ctypes.get_errno(), "unshare")
with open("/proc/sys/user/max_net_namespaces", "w") as file:
    file.write(most)
sys.exit(subprocess.run(argv).returncode)
"""


@pytest.mark.promise("1.3")
def test_network_namespaces_are_forbidden(host: Host, policy: Callable[..., str]) -> None:
    """The switch, and the command that puts it; before anything is made."""
    before = len(host.belljar.runs())
    argv = [
        sys.executable,
        "-c",
        _LIMITED,
        "0",
        sys.executable,
        "-m",
        "belljar",
        "exec",
        policy(),
        "--",
        *FETCH,
    ]
    environment = host.belljar.environment(TMPDIR=str(host.scratch))
    ran = subprocess.run(argv, env=environment, capture_output=True, timeout=120, check=False)
    said = ran.stderr.decode()
    assert ran.returncode == 3, said
    assert "needs network namespaces, and user.max_net_namespaces is 0" in said
    assert "as root: sysctl -w user.max_net_namespaces=" in said
    told_and_gone(host, said, before)


_OPEN = """\
import sys
from pathlib import Path
import anyio
from belljar.errors import BelljarError
from belljar.network.owner.making import RangeSpec
from belljar.network.owner.range import open_range
from belljar.plan.addresses import lay_out
from belljar.plan.network import NetworkPlan

class Recorder:
    def record(self, event):
        print(event.kind.value)

async def main():
    home = Path(sys.argv[1])
    network = NetworkPlan()
    layout = lay_out(network, ("agent",), random_bytes=bytes(64), avoid=())
    try:
        async with open_range(RangeSpec(network=network, layout=layout, directory=home), recorder=Recorder(), home=home):
            print("opened")
    except BelljarError as error:
        print(error.exit_code, error)

anyio.run(main)
"""


def test_too_many_network_namespaces(tmp_path: Path) -> None:
    """Where the kernel's limit is reached the supervisor says which, and what raises it; the range
    is gone, and so is its entry."""
    argv = [sys.executable, "-c", _LIMITED, "0", sys.executable, "-c", _OPEN, str(tmp_path)]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert (
        "the kernel gives the range no net namespace of its own: No space left on device"
        in ran.stdout
    ), ran.stderr
    assert "\n3 range r-" in ran.stdout
    assert "hint: as root: raise user.max_net_namespaces" in ran.stdout
    assert [line for line in ran.stdout.splitlines() if line.startswith("range.")] == [
        "range.opening", "range.failed", "range.destroying", "range.destroyed",
    ]  # fmt: skip
    assert list((tmp_path / "journal").iterdir()) == []


_HIDING = """\
import sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in ("uvicorn", "wsproto") else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""


@pytest.mark.promise("1.3")
def test_the_extra_is_not_installed(host: Host, policy: Callable[..., str], tmp_path: Path) -> None:
    """The modules by name, and what installs them; `doctor` has a line for it."""
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks/sitecustomize.py").write_text(_HIDING)
    path = f"{tmp_path / 'hooks'}:{os.environ.get('PYTHONPATH', '')}"
    said = refused(host, policy(), code=3, PYTHONPATH=path)
    assert (
        "a range's network needs the Python modules uvicorn, wsproto, which are not installed"
        in said
    )
    assert "pip install 'belljar-sandbox[network,stand-ins]'" in said
    doctor = host.run("doctor", "--no-prove", PYTHONPATH=path).stdout.decode()
    assert "the Python modules uvicorn, wsproto" in doctor


def test_a_fork_server_that_can_not_import_says_what() -> None:
    """In one line, not by a traceback."""
    fork_server = ForkServer("belljar.network.no_such_gateway:serve")
    try:
        with pytest.raises(HostError) as refused:
            fork_server.wait_ready()
    finally:
        fork_server.end()
    assert (
        refused.value.what == "the ranges' fork server did not start: No module named"
        " 'belljar.network.no_such_gateway'"
    )
    assert "belljar-sandbox[network,stand-ins]" in refused.value.hint


# ---- what the author got wrong


@pytest.mark.parametrize(
    ("stand_in", "files", "said"),
    [
        ("{kind: har, names: [a.example], recording: own/a.har}", {"a_har": '{"log":\n  ]'}, "own/a.har:2:3: not JSON"),
        ("{kind: http, names: [a.example], routes: [{path: /, bodyy: x}]}", {}, "routes[0].bodyy"),
        ("{kind: har, names: [a.example], recording: own/none.har}", {}, "`own/none.har` can't be used: no such file or directory\n"),
        ("{kind: har, names: [a.example], recording: ../a.har}", {}, "`../a.har` contains `..`"),
        ("{kind: pypi, names: [a.example], packages: own}", {}, "empty; put wheels"),
    ],
)  # fmt: skip
def test_files_that_will_not_do(
    stand_in: str, files: dict[str, str], said: str, host: Host, policy: Callable[..., str]
) -> None:
    """Refused with the policy's line and the file's, before anything is made."""
    found = refused(host, policy(f"    site: {stand_in}\n", **files), code=4)
    assert "p.yaml:6:" in found
    assert said in found


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("[sh, -c, 'echo words of its own; exit 3']", "its output ends with: words of its own"),
        ("[no-such-program]", "no-such-program: No such file"),
    ],
)
def test_a_target_that_does_not_get_healthy(
    command: str, said: str, host: Host, policy: Callable[..., str]
) -> None:
    """How often it was tried, what it said last, and where to fix it."""
    health = "{command: ['false'], retries: 2, interval: 100ms}"
    target = (
        f"    shop: {{kind: cell, names: [a.example], ports: [80], user: root, command: {command},"
        f" health: {health}}}\n"
    )
    found = refused(host, policy(target), code=5)
    assert "network.stand_ins.shop (cell c-" in found
    ends = (
        "did not become healthy in 2 tries",
        "its program ended with status 3",
        "its program can't be started",
    )
    assert any(end in found for end in ends)
    assert said in found
    assert "fix its `command` or its `health`" in found


# ---- what dies


def fork_server_below(owner: int) -> int | None:
    """The ranges' fork server of an owner, when it has one."""
    for pid, _ in below(owner):
        with contextlib.suppress(OSError):
            if b"belljar.network.fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return None


def part(owner: int, victim: str) -> int | None:
    """The pid of `fork_server`, of `supervisor` or of `gateway`: the fork server forks them in this
    order."""
    fork_server = fork_server_below(owner)
    if fork_server is None or victim == "fork_server":
        return fork_server
    with contextlib.suppress(OSError):
        children = [
            int(pid)
            for pid in Path(f"/proc/{fork_server}/task/{fork_server}/children").read_text().split()
        ]
        at = {"supervisor": 0, "gateway": 1}[victim]
        return children[at] if len(children) > at else None
    return None


def started(host: Host, *args: str) -> subprocess.Popen[bytes]:
    """`belljar` that heeds SIGINT, whoever started the tests."""
    argv = ["env", "--default-signal=INT", sys.executable, "-m", "belljar", *args]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        env=host.belljar.environment(TMPDIR=str(host.scratch)),
    )


@pytest.mark.parametrize(
    ("victim", "moment", "tier"),
    [
        *(
            (victim, moment, "container")
            for victim in ("fork_server", "supervisor", "gateway")
            for moment in ("start", "request")
        ),
        ("gateway", "request", "gvisor"),
        ("supervisor", "start", "gvisor"),
    ],
)
@pytest.mark.thorough_in("gvisor")
def test_a_part_is_killed(
    victim: str, moment: str, tier: str, host: Host, policy: Callable[..., str]
) -> None:
    """SIGKILL as soon as it is there (the fork server: as soon as it has a child; before that
    another takes its place), or while a request is half sent: the range ends, which one died is
    said, exit 5.
    """
    before = len(host.belljar.runs())
    with started(host, "exec", policy(), "--tier", tier, "--", "python3", "-c", _HALF) as process:
        assert process.stdout is not None
        found: list[int] = []

        def there() -> bool:
            is_used = (
                part(process.pid, "supervisor" if victim == "fork_server" else victim) is not None
            )
            found[:] = [pid for pid in [part(process.pid, victim)] if pid is not None and is_used]
            return bool(found) or process.poll() is not None

        if moment == "request":
            assert process.stdout.readline() == b"half\n"
        wait_for(there, f"the {victim}")
        os.kill(found[0], signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    said = err.decode()
    assert process.returncode == 5, said
    assert "the range's " in said or "the ranges' fork server" in said
    if victim != "fork_server":
        # At its start the other, whose peer is gone, may be noticed first.
        assert (
            "the range's supervisor ended" in said
            or "the range's gateway ended" in said
            or "ended at once" in said
        )
    assert "belljar-sandbox[network,stand-ins]" not in said
    told_and_gone(host, said, before)
    assert {"range.failed", "cell.failed"} & set(kinds(host, before))


_MOMENTS: dict[str, Callable[[int, list[str]], bool]] = {
    "fork_server": lambda owner, _: part(owner, "fork_server") is not None,
    "supervisor": lambda owner, _: part(owner, "supervisor") is not None,
    "gateway": lambda owner, _: part(owner, "gateway") is not None,
    "opened": lambda _, seen: "range.opened" in seen,
    "command": lambda _, seen: "exec.started" in seen,
}


@pytest.mark.parametrize("moment", _MOMENTS)
def test_ctrl_c(moment: str, host: Host, policy: Callable[..., str]) -> None:
    """While the range comes up and while it runs: exit 130, and nothing is left."""
    before = len(host.belljar.runs())
    with started(host, "exec", policy(), "--", "sleep", "600") as process:
        wait_for(
            lambda: (
                _MOMENTS[moment](process.pid, kinds(host, before)) or process.poll() is not None
            ),
            moment,
            within_s=90,
        )
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err.decode()
    assert "interrupted; nothing was left running" in err.decode()
    (run,) = host.belljar.runs()[before:]
    host.check(run)
    seen = kinds(host, before)
    assert seen.count("range.opening") == seen.count("range.destroyed")
