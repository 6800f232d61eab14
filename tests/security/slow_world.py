"""A network namespace with one device, `eth0`, behind which a world answers UDP and nothing else,
each time later than anybody on this host would.

`python slow_world.py PROGRAM MAC NAME…` in a network namespace of its own: runs the probe program
there, told that its port is `eth0` with that MAC.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading

OWN_MAC = "02:00:00:00:00:07"
LATE_S = 0.4
WORLD = ("1.1.1.1", "8.8.8.8")


def answer_late() -> None:
    """Says `up` when it listens, at whatever address it is given afterwards."""
    port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    port.bind(("0.0.0.0", 443))  # noqa: S104 - a namespace that leads nowhere
    print("up", flush=True)
    while True:
        said, peer = port.recvfrom(100)
        threading.Timer(LATE_S, port.sendto, (said, peer)).start()


def wait_until_up() -> None:
    """A device takes no packets until the kernel's slow watch of carriers has looked at it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.settimeout(2 * LATE_S)
        end.connect((WORLD[0], 443))
        for _ in range(20):
            with contextlib.suppress(TimeoutError):
                end.send(b"up?")
                end.recv(100)
                return


def command(*argv: str) -> None:
    subprocess.run(argv, check=True)


def main(program: str, mac: str, *names: str) -> None:
    argv = ["unshare", "--net", sys.executable, __file__, "world"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as world:
        assert world.stdout is not None
        assert world.stdout.readline() == b"up\n"
        inside = ("nsenter", f"--net=/proc/{world.pid}/ns/net")
        command(
            "ip", "link", "add", "eth0", "address", OWN_MAC, "type", "veth", "peer", "name", "w0"
        )
        command("ip", "link", "set", "w0", "netns", str(world.pid))
        command(*inside, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/icmp_echo_ignore_all")
        for address in WORLD:
            command(*inside, "ip", "address", "add", address, "dev", "w0")
        for device in ("lo", "w0"):
            command(*inside, "ip", "link", "set", device, "up")
        command("ip", "address", "add", "192.0.2.2/24", "dev", "eth0")
        command("ip", "link", "set", "eth0", "up")
        command("ip", "route", "add", "default", "dev", "eth0")
        command(*inside, "ip", "route", "add", "192.0.2.0/24", "dev", "w0", "src", WORLD[0])
        wait_until_up()
        told = f"interface=eth0\ninterface_mac={mac}\nnonce=x\n"
        sys.stdout.write(
            subprocess.run([program, *names], input=told, check=True, text=True, stdout=-1).stdout
        )
        world.kill()


if __name__ == "__main__":
    if sys.argv[1:] == ["world"]:
        answer_late()
    main(*sys.argv[1:])
