"""The prepared parent of a run's supervisors and gateways: imports, then forks.

A confined gateway can import nothing. Each child waits for `go`, so the journal names it first.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NoReturn

from belljar import dataclass
from belljar.network import ipc, syscalls
from belljar.network.gateway.config import GatewayConfig
from belljar.network.gateway.main import run_gateway
from belljar.network.supervisor.main import SupervisorTask, run_supervisor

# What libraries import only when they need it: codecs, and the parts of TLS and certificates.
PRELOAD: Final = (
    *("asyncio.sslproto", "cryptography.hazmat.backends.openssl.backend", "cryptography.x509"),
    *("cryptography.hazmat.primitives.asymmetric.ec", "encodings.idna", "encodings.latin_1"),
    *("encodings.utf_8", "h11", "stringprep", "unicodedata"),
)
Child = Callable[[list[int], int], NoReturn]


def main(argv: list[str]) -> NoReturn:
    """Take `FD SERVE PATH IMPORTS`: owner's socket, gateway's `module:function`, more imports."""
    owner = socket.socket(fileno=int(argv[0]))
    # A terminal's signals are the owner's to handle: it ends the range in order
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    syscalls.close_all_but((0, 1, 2, owner.fileno()))
    module, _, name = argv[1].partition(":")
    try:
        preload(json.loads(argv[3]))
        serve = getattr(importlib.import_module(module), name)
    except ImportError as exc:
        sys.exit(f"{exc}")
    gc.collect()
    gc.freeze()
    ipc.send(owner, {"ready": os.getpid()})
    gateway = partial(run_gateway, serve=serve)
    _work(owner, {"supervisor": run_supervisor, "gateway": gateway})


def preload(more: Iterable[str] = ()) -> None:
    import_all((*PRELOAD, *more))
    dataclass.prepare(GatewayConfig, SupervisorTask)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("belljar.network.gateway.tls").warm_up()


def import_all(names: Iterable[str]) -> bool:
    """Import what is installed; return whether anything was new."""
    known = len(sys.modules)
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    return len(sys.modules) > known


def _work(owner: socket.socket, roles: Mapping[str, Child]) -> NoReturn:
    # How children ended that nobody asked for yet, in waitpid's terms
    statuses = dict[int, int]()
    while True:
        try:
            message, fds = ipc.receive(owner)
        except ipc.ClosedError:
            os._exit(0)
        # Here alone: until then the number of one that has ended is still its own.
        with contextlib.suppress(ChildProcessError):  # there is none
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                statuses[ended[0]] = ended[1]
        answer: dict[str, Any] = {"number": int(message["number"])}
        made = list[int]()
        if "fork" in message:
            try:
                if import_all(message["imports"]):
                    gc.collect()
                    gc.freeze()
                answer["pids"] = _fork(roles, message["fork"], fds, made)
            except (ImportError, OSError) as exc:  # the other ranges go on
                answer["error"] = f"no process can be made: {exc}"
        else:  # reported once
            answer["status"] = statuses.pop(int(message["ended"]), None)
        ipc.send(owner, answer, made)
        for fd in (*fds, *made):  # The children and the owner have copies.
            os.close(fd)


def _fork(
    roles: Mapping[str, Child], counts: Mapping[str, int], fds: list[int], made: list[int]
) -> list[int]:
    parent, at, pids = os.getpid(), 0, list[int]()
    for role, count in counts.items():
        own, at = fds[at : at + count], at + count
        if (pid := os.fork()) == 0:
            try:
                syscalls.die_with_parent(parent)
                syscalls.close_all_but((0, 1, 2, *own))  # no child has another's
                roles[role](own, parent)
            except BaseException as exc:  # noqa: BLE001 - it ends here, and says why
                print(f"{type(exc).__name__}: {exc}"[:2000], file=sys.stderr, flush=True)
            finally:
                os._exit(1)
        made.append(os.pidfd_open(pid))
        pids.append(pid)
    return pids
