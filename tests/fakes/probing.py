"""A probe program that runs nowhere: it answers as it is told to, or really touches what it was
given, as an escape would."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from belljar.channel import ExecOutput
from belljar.errors import CellError
from belljar.policy.limits import NOTHING_GRANTED, Resources
from belljar.probe.model import AttemptOutcome, Probe, Witness

PROBES: tuple[Probe, ...] = (
    Probe(
        name="files.canary",
        tries="read a file of the host",
        why="a shared mount",
        breach="its content",
        witness=Witness.CANARY,
    ),
    Probe(
        name="files.socket",
        tries="connect to a socket of the host",
        why="a runtime's control socket in a container",
        breach="a connection",
        witness=Witness.SOCKET,
    ),
    Probe(name="calls.mount", tries="mount", why="CVE-2022-0185", breach="it is mounted"),
    Probe(
        name="fingerprint.hypervisor",
        quick=False,
        tries="read the processor's flags",
        why="a machine that knows that it is one",
        breach="the hypervisor flag",
        expected={"microvm": "a virtual machine has the flag"},
    ),
)


def parameters(said: bytes) -> dict[str, str]:
    return dict(line.split("=", 1) for line in said.decode().splitlines())


def answer(
    probes: Sequence[Probe],
    nonce: str,
    outcomes: Mapping[str, tuple[AttemptOutcome, str]] | None = None,
) -> bytes:
    """The whole output of a program to which everything is denied, but for `outcomes`."""
    said = {probe.name: (AttemptOutcome.DENIED, "EPERM") for probe in probes} | dict(outcomes or {})
    lines = [f"{name}\t{outcome}\t{detail}\n" for name, (outcome, detail) in said.items()]
    return "".join([*lines, f"end\t{len(lines)}\t{nonce}\n"]).encode()


class FakeProgram:
    """Stands for `Cell.run_probe_program`. `touch` is called with the parameters, as an escape;
    `spoil` may change the output."""

    def __init__(self, probes: Sequence[Probe] = PROBES) -> None:
        self.probes = probes
        self.outcomes: dict[str, tuple[AttemptOutcome, str]] = {}
        self.touch: Callable[[dict[str, str]], object] = lambda _: None
        self.spoil: Callable[[bytes], bytes] = lambda output: output
        self.error: Exception | None = None
        self.timed_out = False
        self.asked: list[list[str]] = []

    async def __call__(
        self,
        argv: Sequence[str],
        *,
        input: bytes,  # noqa: A002 - as the real one
        timeout_s: float,
        user: str | None = None,
        alone: bool = False,
    ) -> ExecOutput:
        self.asked.append(list(argv))
        if self.error is not None:
            raise self.error
        given, words = parameters(input), argv[1:]
        self.touch(given)
        every, quick = "all" in words, "quick" in words
        wanted = [
            p for p in self.probes if every or (quick and p.quick) or {p.name, p.group} & {*words}
        ]
        names = {probe.name for probe in wanted}
        outcomes = {name: said for name, said in self.outcomes.items() if name in names}
        output = self.spoil(answer(wanted, given["nonce"], outcomes))
        return ExecOutput(returncode=0, code=0, stdout=output, timed_out=self.timed_out)


class FakeProbed:
    def __init__(self, *, host_pid: int | None = None, has_port: bool = False) -> None:
        self.id, self.tier, self.host_pid = "c-000000000000", "microvm", host_pid
        self.has_port = has_port
        self.plan: Any = SimpleNamespace(
            limits=Resources(), oci=None, rights=NOTHING_GRANTED, policy=SimpleNamespace(model=None)
        )
        self.run_probe_program = FakeProgram()


def dead(_: object = None) -> CellError:
    return CellError("the cell died: memory", where="cell c-000000000000")


def read_canary(given: dict[str, str]) -> None:
    Path(given["canary"]).read_bytes()


def write_canary(given: dict[str, str]) -> None:
    Path(given["canary"]).write_text(given["token"])


def signal_sentinel(given: dict[str, str]) -> None:
    os.kill(int(given["pid"]), signal.SIGUSR1)


def kill_sentinel(given: dict[str, str]) -> None:
    pid = int(given["pid"])
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def visit(
    family: int, kind: int, address: Callable[[dict[str, str]], Any]
) -> Callable[[dict[str, str]], None]:
    """An escape that talks to a listener of the host."""

    def act(given: dict[str, str]) -> None:
        with socket.socket(family, kind) as stream:
            stream.connect(address(given))
            stream.send(given["token"].encode())

    return act
