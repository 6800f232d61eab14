"""A virtual machine's port on the range that `vm_range.py` stands in for: the port as isolation has
it, and what a guest tries on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import anyio.to_thread

from belljar.errors import HostError
from belljar.isolation.identity import user_range
from belljar.isolation.renewal import PortSettings

PROGRAM = Path(__file__).with_name("vm_range.py")
GATEWAY, GATEWAY_MAC, RESOLVER = "10.77.0.1", "02:00:00:00:01:01", "10.77.0.53"


class StandInRange:
    """The helper, and its ports."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, **command: object) -> dict[str, Any]:
        """The helper's answer. Blocking. Raises `HostError` when it failed."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("no pipes")
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        said = dict(json.loads(self._process.stdout.readline()))
        if "error" in said:
            raise HostError(f"no link: {said['error']}")
        return said

    def port(self, number: int) -> StandInPort:
        """A port that is not attached yet."""
        return StandInPort(self, number)

    @property
    def pid(self) -> int:
        """Of the helper."""
        return self._process.pid


class StandInPort:
    """As `isolation.renewal.Port`."""

    range_id = ""

    def __init__(self, its_range: StandInRange, number: int) -> None:
        self.number, self.attached_pids = number, list[int]()
        self._range = its_range
        self.user_namespace = (
            None
            if os.geteuid() == 0
            else os.open(f"/proc/{its_range.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        )
        self.settings = PortSettings(
            address=IPv4Address(f"10.77.0.{10 + number}"),
            gateway=IPv4Address(GATEWAY),
            mac=f"02:00:00:00:00:{10 + number:02x}",
            gateway_mac=GATEWAY_MAC,
            resolver=IPv4Address(RESOLVER),
        )

    async def attach(self, pid: int) -> None:
        """As the protocol has it."""
        self.attached_pids.append(pid)
        await anyio.to_thread.run_sync(partial(self._range.ask, attach=pid, port=self.number))


@contextmanager
def stand_in_range() -> Iterator[StandInRange]:
    """The helper, with the ids of this user below it, until the block is left."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, str(PROGRAM)], stdin=pipe, stdout=pipe, text=True
    ) as process:
        try:
            first = json.loads(process.stdout.readline()) if process.stdout else {}
            if "map" in first and process.stdin and process.stdout:
                _write_maps(process.pid)
                process.stdin.write("mapped\n")
                process.stdin.flush()
                process.stdout.readline()
            yield StandInRange(process)
        finally:
            process.kill()


def _write_maps(pid: int) -> None:
    """0 is this user, 1 and on are his subordinate ids."""
    ids = user_range().ids
    if ids is None:
        raise RuntimeError("no ids")
    for mapper, lines in ((ids.newgidmap, ids.gid_map), (ids.newuidmap, ids.uid_map)):
        words = [str(number) for line in lines for number in line]
        subprocess.run([str(mapper), str(pid), *words], check=True)
