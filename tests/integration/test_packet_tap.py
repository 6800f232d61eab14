"""Frames as they were sent are frames as they are recorded, on a real pair of devices."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from belljar.network.packets import records

pytestmark = [pytest.mark.root]
PROGRAM = """
import json, os, socket, subprocess, sys
from pathlib import Path
from belljar.network.packets import MIN_BYTES, PacketFiles, Tap
tap = Tap()
subprocess.run(["ip", "link", "add", "inner", "type", "veth", "peer", "name", "outer"], check=True)
for name in ("inner", "outer"):
    silence = Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
    if silence.exists():
        silence.write_text("1")
    subprocess.run(["ip", "link", "set", name, "up"], check=True)
shown = ["ip", "-j", "link", "show", "inner"]
while json.loads(subprocess.run(shown, check=True, stdout=subprocess.PIPE).stdout)[0]["operstate"] != "UP":
    pass  # the kernel brings it up in its own time, and drops what is sent before
files = PacketFiles(tuple(os.open(path, os.O_RDWR | os.O_CREAT) for path in sys.argv[1:3]), MIN_BYTES)
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
    raw.bind(("inner", 0))
    for frame in sys.argv[3:]:
        raw.send(bytes.fromhex(frame))
while files.packets < 2 * len(sys.argv[3:]):
    tap.read_into(files)
"""


def test_a_vlan_tag_is_recorded(tmp_path: Path) -> None:
    """The kernel takes it out as a frame comes in; the record has it where it was, and a frame without one as it is."""
    addresses = "020000000001" + "020000000002"
    tagged = addresses + "8100" + "6123" + "0800" + "45" * 60
    doubly = addresses + "88a8" + "0007" + "8100" + "0008" + "0800" + "45" * 60
    plain = addresses + "0800" + "45" * 60
    first, second = tmp_path / "a", tmp_path / "b"
    words = ["unshare", "--net", sys.executable, "-c", PROGRAM, str(first), str(second), tagged, doubly, plain]
    subprocess.run(words, check=True, timeout=300, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    data = first.read_bytes()
    ends = [24, *(end for _, end in records(first))]
    frames = [data[begin + 16 : end].hex() for begin, end in pairwise(ends)]
    assert sorted(frames) == sorted([tagged, doubly, plain] * 2)
