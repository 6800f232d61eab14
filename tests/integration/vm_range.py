"""Stands in for a range's supervisor towards virtual machines: a network namespace without any
uplink, ports in it, and somebody who listens.

`vm_range.py` reads and answers JSON lines. Started by root it needs nothing else. An ordinary
user's begins in a user namespace of its own: it says `{"map": PID}` and waits for a line, when its
maps are written.

{"attach": PID, "port": N}  puts a new port's inner end into that process's network namespace,
configured and up {"send": HEX, "port": N, "times": T}  sends that frame T times out of the outer
end; `sent` is how many the kernel took {"look": 0}                 links that are there;
connections by peer; frames that came by port, kind and sender; datagrams
"""

from __future__ import annotations

import collections
import ctypes
import fcntl
import hashlib
import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
GATEWAY, RESOLVER = "10.77.0.1", "10.77.0.53"
GATEWAY_MAC = "02:00:00:00:01:01"
TCP_PORT, UDP_PORT = 80, 53
SIOCETHTOOL, STXCSUM, STSO, SGSO = 0x8946, 0x17, 0x1F, 0x24
ALL_FRAMES = 0x0003

peers: collections.Counter[str] = collections.Counter()
datagrams: collections.Counter[str] = collections.Counter()
frames: collections.Counter[str] = collections.Counter()
taps: dict[int, socket.socket] = {}


def address_of(port: int) -> str:
    """A cell's."""
    return f"10.77.0.{10 + port}"


def mac_of(port: int) -> str:
    """A cell's."""
    return f"02:00:00:00:00:{10 + port:02x}"


def outer_of(port: int) -> str:
    """The outer end's name."""
    return f"p{port}"


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


def without_offloads(device: str) -> None:
    """The other end must get whole, checked packets: as the supervisor does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in (STXCSUM, STSO, SGSO):
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP", device.encode(), ctypes.addressof(value))
            fcntl.ioctl(any_socket, SIOCETHTOOL, request)


def attach(pid: int, port: int) -> None:
    """A veth pair between here and there: no common segment, permanent neighbours, no ARP."""
    outer, address, mac = outer_of(port), address_of(port), mac_of(port)
    ip(f"link add {outer} address {GATEWAY_MAC} type veth peer name eth0 address {mac} netns {pid}")
    without_offloads(outer)
    ip(
        f"link set {outer} arp off up",
        f"route add {address}/32 dev {outer} src {GATEWAY}",
        f"neigh add {address} lladdr {mac} nud permanent dev {outer}",
    )
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_FRAMES))
    tap.bind((outer, ALL_FRAMES))
    taps[port] = tap
    threading.Thread(target=watch, args=(tap, port), daemon=True).start()
    ip(
        "link set eth0 up",
        f"address add {address}/32 dev eth0",
        f"neigh add {GATEWAY} lladdr {GATEWAY_MAC} nud permanent dev eth0",
        f"route add {GATEWAY}/32 dev eth0 scope link",
        f"route add default via {GATEWAY} dev eth0 onlink",
        at=pid,
    )


def watch(tap: socket.socket, port: int) -> None:
    """Count what comes from the cell, as long as its link is there."""
    while True:
        try:
            frame, address = tap.recvfrom(65536)
        except OSError:  # the link is gone
            return
        if address[2] != socket.PACKET_OUTGOING:
            frames[f"{port} {frame[12:14].hex()} {frame[6:12].hex(':')}"] += 1


def send(port: int, frame: bytes, times: int) -> int:
    """Out of the outer end, as a router that was taken over might."""
    sent = 0
    for _ in range(times):
        try:
            taps[port].send(frame)
            sent += 1
        except OSError:
            continue
    return sent


def exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes, or fewer at the end."""
    taken = bytearray()
    while len(taken) < size and (chunk := connection.recv(min(1 << 20, size - len(taken)))):
        taken += chunk
    return bytes(taken)


def answer(connection: socket.socket) -> None:
    """Two lengths (what comes, what is wanted); the digest of what came; what is wanted, and its
    digest."""
    coming, wanted = struct.unpack("<QQ", exactly(connection, 16))
    connection.sendall(hashlib.sha256(exactly(connection, coming)).digest())
    contents = random.Random(wanted).randbytes(wanted)  # noqa: S311 - a test's dice
    connection.sendall(contents + hashlib.sha256(contents).digest())


def serve_streams(listener: socket.socket) -> None:
    """One after the other."""
    while True:
        connection, peer = listener.accept()
        peers[peer[0]] += 1
        with connection:
            try:
                answer(connection)
            except (OSError, struct.error):
                continue


def serve_datagrams(bound: socket.socket) -> None:
    """Each comes back, its bytes the other way round."""
    while True:
        content, peer = bound.recvfrom(65536)
        datagrams[peer[0]] += 1
        bound.sendto(content[::-1], peer)


def serve() -> None:
    """On every address of this namespace."""
    listener = socket.create_server(("0.0.0.0", TCP_PORT))  # noqa: S104 - of an empty namespace
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    bound.bind((RESOLVER, UDP_PORT))
    threading.Thread(target=serve_streams, args=(listener,), daemon=True).start()
    threading.Thread(target=serve_datagrams, args=(bound,), daemon=True).start()


def obey(command: dict[str, object]) -> dict[str, object]:
    """One command's answer."""
    port = int(str(command.get("port", 0)))
    if "attach" in command:
        attach(int(str(command["attach"])), port)
        return {}
    if "send" in command:
        return {
            "sent": send(
                port, bytes.fromhex(str(command["send"])), int(str(command.get("times", 1)))
            )
        }
    links = [name for _, name in socket.if_nameindex()]
    return {"links": links, "peers": peers, "frames": frames, "datagrams": datagrams}


def main() -> None:
    """Serve the commands until their end."""
    if os.geteuid():
        unshare(CLONE_NEWUSER)
        print(json.dumps({"map": os.getpid()}), flush=True)
        sys.stdin.readline()
    unshare(CLONE_NEWNET)
    ip("link set lo up", f"address add {GATEWAY}/32 dev lo", f"address add {RESOLVER}/32 dev lo")
    serve()
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        try:
            said = obey(json.loads(line))
        except OSError as exc:
            said = {"error": str(exc)}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
