"""Stands in for a range's supervisor: a network namespace without any uplink, one port in it, and
somebody who listens. `range_stand_in.py` reads and answers JSON lines.

Started by root it needs nothing else. An ordinary user's begins in a user namespace of its own: it
says `{"map": PID}` and waits for a line, when its maps are written.

{"attach": PID}   puts the port's inner end into that process's network namespace, configured and up
{"look": 0}       when the port is gone: the links that are there, how many connections came from
whom, which kinds of frames came through the port
"""

from __future__ import annotations

import collections
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
GATEWAY, CELL, RESOLVER = "10.77.0.1", "10.77.0.2", "10.77.0.53"
GATEWAY_MAC, CELL_MAC = "02:00:00:00:00:01", "02:00:00:00:00:02"
OUTER = "p1"
GONE_WITHIN_S = 10
ALL_FRAMES = 0x0003

peers: collections.Counter[str] = collections.Counter()
frames: collections.Counter[str] = collections.Counter()
watchers: list[threading.Thread] = []


def unshare(flags: int) -> None:
    """Leave these namespaces."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")


def ip(*commands: str, at: int | None = None) -> None:
    """All in one, in the network namespace of that process or ours; the first that fails is the
    last."""
    where = () if at is None else ("/usr/bin/nsenter", "--net", "--target", str(at))
    batch = "\n".join(commands).encode()
    result = subprocess.run(
        [*where, "/sbin/ip", "-batch", "-"], input=batch, capture_output=True, check=False
    )
    if result.returncode:
        raise OSError(result.stderr.decode())


def attach(pid: int) -> None:
    """A veth pair between here and there, as 0011 has it: no common segment, permanent neighbours,
    no ARP."""
    ip(
        f"link add {OUTER} address {GATEWAY_MAC} type veth peer name eth0 address {CELL_MAC} netns"
        f" {pid}",
        f"link set {OUTER} arp off up",
        f"route add {CELL}/32 dev {OUTER} src {GATEWAY}",
        f"neigh add {CELL} lladdr {CELL_MAC} nud permanent dev {OUTER}",
    )
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_FRAMES))
    tap.bind((OUTER, ALL_FRAMES))
    watchers.append(threading.Thread(target=watch, args=(tap,), daemon=True))
    watchers[-1].start()
    ip(
        "link set eth0 up",
        f"address add {CELL}/32 dev eth0",
        f"neigh add {GATEWAY} lladdr {GATEWAY_MAC} nud permanent dev eth0",
        f"route add {GATEWAY}/32 dev eth0 scope link",
        f"route add default via {GATEWAY} dev eth0 onlink",
        at=pid,
    )


def watch(tap: socket.socket) -> None:
    """Count what comes from the cell, by kind, from before its link is up until it is gone. A link
    that goes down is no end: none comes from where it was made."""
    with tap:
        while True:
            try:
                frame, address = tap.recvfrom(65536)
            except OSError:
                if OUTER not in dict(socket.if_nameindex()).values():
                    return
                continue
            if address[2] != socket.PACKET_OUTGOING:
                frames[frame[12:14].hex()] += 1


def serve() -> None:
    """Say to everyone at which address he came, after what he sent."""
    listener = socket.create_server(("0.0.0.0", 80))  # noqa: S104 - of an empty namespace
    while True:
        connection, peer = listener.accept()
        with connection:
            peers[peer[0]] += 1
            size = 0
            while taken := len(connection.recv(1 << 16)):
                size += taken
            connection.sendall(f"{connection.getsockname()[0]} {size} ".encode() + bytes(size))


def look() -> dict[str, object]:
    """What is here. The kernel takes a dead namespace's links away a moment after its last
    process."""
    for watcher in watchers:
        watcher.join(GONE_WITHIN_S)
    return {"links": [name for _, name in socket.if_nameindex()], "peers": peers, "frames": frames}


def main() -> None:
    """Serve the commands until their end."""
    if os.geteuid():
        unshare(CLONE_NEWUSER)
        print(json.dumps({"map": os.getpid()}), flush=True)
        sys.stdin.readline()
    unshare(CLONE_NEWNET)
    ip("link set lo up", f"address add {GATEWAY}/32 dev lo", f"address add {RESOLVER}/32 dev lo")
    threading.Thread(target=serve, daemon=True).start()
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = look() if "look" in command else {}
            if "attach" in command:
                attach(command["attach"])
            print(json.dumps(answer), flush=True)
        except OSError as exc:
            print(json.dumps({"error": str(exc)}), flush=True)


if __name__ == "__main__":
    main()
