"""What the evaluation's own process does on this host and beyond it, as the audit hook sees it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import belljar
from belljar.harness.host_processes import MAX_NAMES, proxies_here, watched_host

BEYOND: list[tuple[str, tuple[Any, ...], str]] = [
    ("socket.connect", (None, ("203.0.113.9", 443)), "203.0.113.9:443"),
    ("socket.connect", (None, ("2001:db8::1", 443, 0, 0)), "2001:db8::1:443"),
    ("socket.connect", (None, ("api.example", 443)), "api.example:443"),
    ("socket.connect", (None, ("169.254.169.254", 80)), "169.254.169.254:80"),
    ("socket.connect", (None, ("fe80::1%eth0", 80, 0, 2)), "fe80::1%eth0:80"),
    ("socket.sendto", (None, ("203.0.113.9", 53)), "203.0.113.9:53"),
    ("socket.sendmsg", (None, ("203.0.113.9", 53)), "203.0.113.9:53"),
    ("socket.sendto", (None, ("eth0", 2048)), "eth0:2048"),
    ("socket.getaddrinfo", ("secret.example.", 443, 0, 0, 0), "secret.example"),
    ("socket.getaddrinfo", (b"secret.example", 443, 0, 0, 0), "secret.example"),
    ("socket.gethostbyname", ("secret.example",), "secret.example"),
    ("socket.gethostbyaddr", ("203.0.113.9",), "203.0.113.9"),
]
HERE: list[tuple[str, tuple[Any, ...]]] = [
    ("socket.connect", (None, ("127.0.0.1", 443))),
    ("socket.connect", (None, ("::1", 443, 0, 0))),
    ("socket.connect", (None, "/run/some.sock")),
    ("socket.connect", (None, "relative.sock")),
    ("socket.connect", (None, b"\0abstract")),
    ("socket.connect", (None, (0, 0))),
    ("socket.sendmsg", (None, None)),
    ("socket.getaddrinfo", (None, 80, 0, 0, 0)),
    ("socket.getaddrinfo", ("localhost", 80, 0, 0, 0)),
    ("socket.getaddrinfo", ("::", 80, 0, 0, 0)),
]


def test_what_leads_beyond_this_host_is_counted() -> None:
    """Each connection, datagram, raw packet and lookup, by address or name."""
    for event, arguments, place in BEYOND:
        with watched_host() as found:
            for _ in range(2):
                sys.audit(event, *arguments)
        sys.audit(event, *arguments)  # nobody watches any more
        assert dict(found.connections) == {place: 2}, event


def test_an_engine_of_belljars_is_not_the_task() -> None:
    """A fleet's Ray connects to nodes and starts processes: what it does itself is Belljar's."""
    code = """import sys
sys.audit("socket.connect", None, ("203.0.113.9", 443))
sys.audit("subprocess.Popen", "raylet", ["raylet"], None, None)
"""
    inside = compile(code, str(Path(pytest.__file__).with_name("x.py")), "exec")
    for beside, is_counted in (("pytest", False), ("", True)):
        with watched_host(beside=beside) as found:
            exec(inside, {})  # noqa: S102 - the lines above
        assert bool(found.connections) is is_counted
        assert bool(found.programs) is is_counted


def test_what_stays_on_this_host_is_not() -> None:
    """Loopback, Unix sockets, the kernel's own sockets, and addresses to listen at."""
    with watched_host() as found:
        for event, arguments in HERE:
            sys.audit(event, *arguments)
    assert not found.connections


def test_belljars_own_are_not() -> None:
    """A dial of a real upstream is on record by itself, a look for ways out sends nothing."""
    module = str(Path(str(belljar.__file__)).parent / "dial.py")
    with watched_host() as found:
        call = compile("connect(None, ('203.0.113.9', 9))", module, "exec")
        exec(call, {"connect": partial(sys.audit, "socket.connect")})  # noqa: S102
        assert not found.connections
        library = lambda *words: sys.audit("socket.connect", *words)  # noqa: E731
        exec(call, {"connect": library})  # noqa: S102
    assert dict(found.connections) == {"203.0.113.9:9": 1}


def test_a_proxy_on_this_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections to it are none beyond this host, and what it does with them is not seen."""
    for name in {name for name in os.environ if name.lower().endswith("_proxy")}:
        monkeypatch.delenv(name)
    monkeypatch.setenv("no_proxy", "localhost")
    here = ("http://127.0.0.1:3128", "localhost:3128", "socks5h://[::1]:1080", "http://")
    for proxy in (*here, "http://proxy.example:3128", "http://192.0.2.1"):
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        assert proxies_here() == (["https_proxy"] if proxy in here else []), proxy


def test_what_is_odd_is_counted_and_all_is_bounded() -> None:
    """A socket to the hypervisor has numbers (that of this machine itself leads nowhere)."""
    vsock = SimpleNamespace(family=socket.AF_VSOCK)
    with watched_host() as found:
        for address in ((2, 1024), (1, 1024)):
            sys.audit("socket.connect", vsock, address)
        assert list(found.connections.values()) == [1]
        sys.audit("socket.connect", None, ("\ud800.example", 443))
        sys.audit("socket.getaddrinfo")
        assert sum(found.connections.values()) == 3
    with watched_host() as found:
        for number in range(MAX_NAMES + 30):
            sys.audit("socket.connect", None, (f"203.0.113.{number}", 443))
    assert (len(found.connections), found.connections["others"]) == (MAX_NAMES + 1, 30)


SPAWNING = """
import multiprocessing

from belljar.harness.host_processes import watched_host

if __name__ == "__main__":
    with watched_host() as first:
        pass
    with watched_host() as found:
        started = multiprocessing.get_context("spawn").Process(target=print)
        started.start()
        started.join()
    with watched_host() as again:
        pass
    print(dict(first.programs), dict(found.programs), dict(again.programs))
"""


def test_processes_that_multiprocessing_spawns_are_seen(tmp_path: Path) -> None:
    """Python has no event for these."""
    (tmp_path / "spawning.py").write_text(SPAWNING)
    argv = [sys.executable, str(tmp_path / "spawning.py")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    seen = {"multiprocessing": 1}
    assert done.stdout.splitlines()[-1] == f"{{}} {seen} {seen}"
