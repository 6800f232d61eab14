"""Run in namespaces of its own: a resolver with a search domain, a DNS server on loopback that
remembers what it was asked, and what `dial.resolve` makes of it."""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading

from belljar.network.owner.dial import resolve

ANSWERS = {
    "srv.corp.test": "93.184.215.14",
    "real.example": "1.0.0.1",
    "real.example.corp.test": "1.0.0.66",
}
asked: list[str] = []


def serve(sock: socket.socket) -> None:
    """Answers A questions for the names above; everything else does not exist."""
    while True:
        data, peer = sock.recvfrom(4096)
        labels, at = [], 12
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]].decode())
            at += 1 + data[at]
        name, end = ".".join(labels), at + 5
        kind = struct.unpack("!H", data[at + 1 : at + 3])[0]
        asked.append(name)
        address = ANSWERS.get(name)
        flags = 0x8180 if address else 0x8183
        answer = b""
        if address and kind == 1:
            answer = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 60, 4) + socket.inet_aton(address)
        head = data[:2] + struct.pack("!HHHHH", flags, 1, 1 if answer else 0, 0, 0)
        sock.sendto(head + data[12:end] + answer, peer)


def main() -> None:
    """Prints what each name of the arguments resolves to (or ""), and all that was asked."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 53))
    threading.Thread(target=serve, args=(sock,), daemon=True).start()
    found: dict[str, list[str]] = {}
    for name in sys.argv[1:]:
        try:
            found[name] = list(resolve(name, 443))
        except OSError as error:
            found[name] = [type(error).__name__]
    print(json.dumps({"found": found, "asked": asked}))


main()
