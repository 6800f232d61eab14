"""Runs in a cell: tries what a table tells it, and prints in a word each what came of it. Python 3
and its own library, nothing else.

Standard input: `{"steps": [{"id", "do", "args", "alone"}], "timeout_s"}`. Its word is not believed:
what counts is what the host sees.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TIMEOUT_S = 3.0
AT_ONCE = 12
AUTHORITY = "/usr/local/share/ca-certificates/local-root.crt"
RCODES = {0: "NOERROR", 1: "FORMERR", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}


def word(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, ssl.SSLError):
        return f"alert {error.reason}"
    if isinstance(error, socket.gaierror):
        return "unresolved"
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def made(kind: int, family: int = socket.AF_INET, protocol: int = 0) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    sock.settimeout(TIMEOUT_S)
    return sock


def heard(sock: socket.socket) -> str:
    try:
        data = sock.recv(4096)
    except TimeoutError:
        return "silence"
    return "answer " + data[:60].decode("latin-1") if data else "closed"


def tcp(address: str, port: str, said: str = "", family: str = "4") -> str:
    with made(socket.SOCK_STREAM, socket.AF_INET6 if family == "6" else socket.AF_INET) as sock:
        sock.connect((address, int(port)))
        sock.sendall(said.encode("latin-1"))
        return heard(sock)


def each(addresses: str, port: str, said: str = "") -> str:
    return " ".join(
        word_of(kind, [address, port, said])
        for address in addresses.split(",")
        for kind in (tcp, udp)
    )


def begin(address: str, port: str, said: str) -> str:
    with made(socket.SOCK_STREAM) as sock:
        sock.sendto(said.encode(), 0x20000000, (address, int(port)))
        return heard(sock)


def ended(address: str, port: str, said: str = "") -> str:
    with made(socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        return f"begun {sock.connect_ex((address, int(port)))}"


def udp(address: str, port: str, said: str = "", family: str = "4", own_port: str = "0") -> str:
    """Send a datagram; wait for an answer or an error."""
    with made(socket.SOCK_DGRAM, socket.AF_INET6 if family == "6" else socket.AF_INET) as sock:
        sock.settimeout(0.7)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        if own_port != "0":
            sock.bind(("", int(own_port)))
        if not address.startswith(("22", "23", "255", "ff")):
            sock.connect((address, int(port)))
            sock.send(said.encode("latin-1"))
            return heard(sock)
        sock.sendto(said.encode("latin-1"), (address, int(port)))
        return heard(sock)


def from_address(source: str, address: str, port: str, option: str, said: str) -> str:
    """A datagram under another source; `option`: the socket's that allows the binding, 0: none."""
    with made(socket.SOCK_DGRAM) as sock:
        if option != "0":
            sock.setsockopt(socket.IPPROTO_IP, int(option), 1)
        sock.bind((source, 0))
        sock.sendto(said.encode(), (address, int(port)))
        return "sent"


def packet_info(source: str, address: str, port: str, said: str) -> str:
    with made(socket.SOCK_DGRAM) as sock:
        info = struct.pack("=I4s4s", 0, socket.inet_aton(source), bytes(4))
        sock.sendmsg([said.encode()], [(socket.IPPROTO_IP, 8, info)], 0, (address, int(port)))
        return "sent"


def source_route(kind: str, via: str, address: str, port: str) -> str:
    """A datagram with a loose (131) or strict (137) source route."""
    with made(socket.SOCK_DGRAM) as sock:
        option = bytes((1, int(kind), 7, 4)) + socket.inet_aton(via)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, option)
        sock.sendto(b"routed", (address, int(port)))
        return "sent"


def join_group(group: str) -> str:
    """Tell the network that this cell wants a multicast group: its kernel says so by IGMP."""
    with made(socket.SOCK_DGRAM) as sock:
        member = socket.inet_aton(group) + bytes(4)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        return "joined"


def fragments(address: str, port: str) -> str:
    """A datagram larger than the link's packets, with leave to cut it."""
    with made(socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IP, 10, 0)
        sock.sendto(b"f" * 4000, (address, int(port)))
        return "sent"


def open_socket(family: str, kind: str, protocol: str, address: str, port: str) -> str:
    """A socket of a kind that not everybody gets, and a packet by it."""
    with made(int(kind), int(family), int(protocol)) as sock:
        if int(kind) == socket.SOCK_STREAM:
            sock.connect((address, int(port)))
            return heard(sock)
        echo = b"\x08\x00\xf7\xfe\x00\x00\x00\x01tunnel"
        sock.sendto(echo if int(protocol) in (1, 255) else b"tunnel", (address, int(port)))
        return "sent"


def frame(hexadecimal: str) -> str:
    """A frame of one's own making, by a packet socket."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as sock:
        sock.bind(("eth0", 0))
        sock.send(bytes.fromhex(hexadecimal))
        return "sent"


def question(
    name: bytes,
    kind: int,
    *,
    clazz: int = 1,
    flags: int = 0x0100,
    count: int = 1,
    tail: bytes = b"",
) -> bytes:
    labels = b"".join(bytes((len(label),)) + label for label in name.split(b".") if label)
    asked = labels + b"\0" + struct.pack("!HH", kind, clazz) if count else b""
    return struct.pack("!HHHHHH", 0x2A2A, flags, count, 0, 0, 1 if tail else 0) + asked + tail


def dns(
    address: str,
    port: str,
    name: str,
    kind: str = "1",
    over: str = "udp",
    clazz: str = "1",
    flags: str = "256",
) -> str:
    """One query as told, whoever it goes to: the answer's code and how many records."""
    wire = question(name.encode("latin-1"), int(kind), clazz=int(clazz), flags=int(flags))
    return dns_wire(address, port, wire, over)


def dns_wire(address: str, port: str, wire: bytes, over: str = "udp") -> str:
    with made(socket.SOCK_STREAM if over == "tcp" else socket.SOCK_DGRAM) as sock:
        sock.connect((address, int(port)))
        sock.sendall(struct.pack("!H", len(wire)) + wire if over == "tcp" else wire)
        said = sock.recv(4096)[2 if over == "tcp" else 0 :]
        if len(said) < 12:
            return "closed"
        return f"{RCODES.get(said[3] & 15, said[3] & 15)} {int.from_bytes(said[6:8], 'big')}"


def dns_odd(address: str, what: str, name: str) -> str:
    client_subnet = b"\0\0\x29\x10\0\0\0\0\0\0\x0b\0\x08\0\x07\0\x01\x18\0\xcb\0\x71"
    wire = {
        "none": question(b"", 1, count=0),
        "update": question(name.encode(), 6, flags=0x2800),
        "subnet": question(name.encode(), 1, tail=client_subnet),
        "pointer": question(b"", 1)[:12] + b"\xc0\x0c\0\1\0\1",
    }[what]
    return dns_wire(address, "53", wire)


def many(address: str, suffix: str, count: str) -> str:
    """Many names in a row, as who carries data out does."""
    data = "".join(f"{number * 7919:08x}" for number in range(int(count)))
    words = {
        dns(address, "53", f"{data[at : at + 8]}.{suffix}", "16") for at in range(0, len(data), 8)
    }
    return " ".join(sorted(words))


def again(address: str, name: str, times: str) -> str:
    """The same name again and again: does its address change?"""
    return " ".join(sorted({dns(address, "53", name) for _ in range(int(times))}))


def resolve(name: str) -> str:
    found = socket.getaddrinfo(name, 80, socket.AF_INET, socket.SOCK_STREAM)
    return " ".join(sorted({str(item[4][0]) for item in found}))


def resolve_and_connect(name: str, port: str) -> str:
    with socket.create_connection((name, int(port)), TIMEOUT_S) as sock:
        return heard(sock)


def reply(sock: socket.socket) -> str:
    data = b""
    while b"\r\n" not in data and (more := sock.recv(4096)):
        data += more
    return data.split(b"\r\n")[0].decode("latin-1") or "closed"


def http(address: str, port: str, head: str) -> str:
    with made(socket.SOCK_STREAM) as sock:
        sock.connect((address, int(port)))
        sock.sendall(head.replace("|", "\r\n").encode("latin-1"))
        return reply(sock)


@functools.cache
def context(newest: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED) -> ssl.SSLContext:
    """A client that trusts the range's authority and checks no name: that is the question."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.maximum_version = newest
    client.load_verify_locations(AUTHORITY)
    return client


def tls(address: str, port: str, sni: str, head: str = "") -> str:
    """A handshake with this name (`-`: none), then a request as written."""
    client = context()
    with made(socket.SOCK_STREAM) as sock:
        sock.connect((address, int(port)))
        with client.wrap_socket(sock, server_hostname=None if sni == "-" else sni) as secure:
            if not head:
                return f"shaken {secure.version()}"
            secure.sendall(head.replace("|", "\r\n").encode("latin-1"))
            return reply(secure)


def resume(address: str, port: str, first: str, second: str, when: str) -> str:
    """A session of TLS 1.2 under one name, and its resumption under another."""
    client = context(ssl.TLSVersion.TLSv1_2)
    with made(socket.SOCK_STREAM) as one, made(socket.SOCK_STREAM) as other:
        if when == "early":
            other.connect((address, int(port)))
            other.sendall(b"\x16")
        one.connect((address, int(port)))
        with client.wrap_socket(one, server_hostname=first) as secure:
            session = secure.session
        if when != "early":
            other.connect((address, int(port)))
        return resumed(client, other, second, session, sent=int(when == "early"))


def resumed(
    client: ssl.SSLContext,
    sock: socket.socket,
    name: str,
    session: ssl.SSLSession | None,
    sent: int,
) -> str:
    """The second handshake; so many bytes of its first word have been sent."""
    came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
    engine = client.wrap_bio(came, goes, server_hostname=name, session=session)
    while True:
        try:
            engine.do_handshake()
            sock.sendall(goes.read())
            return f"shaken {'anew' if not engine.session_reused else 'again'} {heard(sock)[:6]}"
        except ssl.SSLWantReadError:
            sock.sendall(goes.read()[sent:])
            sent = 0
            data = sock.recv(1 << 14)
            if not data:
                return "closed"
            came.write(data)


def mail(address: str, port: str, sender: str, to: str, text: str) -> str:
    with made(socket.SOCK_STREAM) as sock:
        sock.connect((address, int(port)))
        last = reply(sock)
        envelope = ("HELO cell", f"MAIL FROM:<{sender}>", f"RCPT TO:<{to}>", "DATA")
        for line in (*envelope, f"Subject: {text}\r\n\r\n{text}\r\n."):
            sock.sendall(line.encode() + b"\r\n")
            last = reply(sock)
        return last


def run(*argv: str) -> str:
    extra = {}
    words = list(argv)
    while words and "=" in words[0] and not words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        extra[name] = value
    env, timeout = {**os.environ, **extra}, TIMEOUT_S * 10
    done = subprocess.run(
        words, env=env, capture_output=True, text=True, check=False, timeout=timeout
    )
    return f"{done.returncode} {(done.stdout + done.stderr).strip()[:200]}"


def write(path: str, text: str) -> str:
    Path(path).write_text(text)
    return "written"


@contextmanager
def edited(path: str, text: str) -> Iterator[None]:
    file = Path(path)
    before = file.read_text()
    file.write_text(text)
    os.utime(file, ns=(time.time_ns(),) * 2)  # libc rereads by these; a tick holds two edits
    try:
        yield
    finally:
        file.write_text(before)


def with_hosts(line: str, do: str, *args: str) -> str:
    with edited("/etc/hosts", f"127.0.0.1 localhost\n{line}\n"):
        return DOING[do](*args)


def with_resolver(server: str, do: str, *args: str) -> str:
    with edited("/etc/resolv.conf", f"nameserver {server}\noptions timeout:1 attempts:1\n"):
        return DOING[do](*args)


def with_own_resolver(own: str, gives: str, do: str, *args: str) -> str:
    """With a resolver of one's own, at a loopback address, that gives any name this address."""
    with made(socket.SOCK_DGRAM) as server:
        server.bind((own, 53))
        server.settimeout(10 * TIMEOUT_S)
        threading.Thread(target=lie, args=(server, socket.inet_aton(gives)), daemon=True).start()
        return with_resolver(own, do, *args)


def lie(server: socket.socket, address: bytes) -> None:
    """Answers every A query with one address, any other with none."""
    try:
        while True:
            query, peer = server.recvfrom(4096)
            end = query.index(b"\0", 12) + 5
            is_a = query[end - 4 : end - 2] == b"\0\1"
            record = b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + address if is_a else b""
            head = query[:2] + b"\x81\x80\0\1\0" + bytes((is_a,)) + b"\0\0\0\0"
            server.sendto(head + query[12:end] + record, peer)
    except OSError:
        return


_STEPS = """tcp each begin ended udp from_address packet_info source_route fragments join_group
open_socket frame dns dns_odd many again resolve resolve_and_connect http tls resume mail run
write with_hosts with_resolver with_own_resolver"""
DOING: dict[str, Callable[..., str]] = {name: globals()[name] for name in _STEPS.split()}


def word_of(do: Callable[..., str], args: list[str]) -> str:
    try:
        return do(*args)
    except OSError as error:
        return word(error)
    except subprocess.TimeoutExpired:
        return "timeout"


def tried(step: dict[str, Any]) -> str:
    try:
        return word_of(DOING[step["do"]], step["args"])
    except Exception as error:  # noqa: BLE001 - told, and then the host sees nothing of it
        return f"failed {type(error).__name__}: {error}"


def main() -> None:
    """All steps: most at the same time, those that change what all share one after the other."""
    global TIMEOUT_S
    asked = json.load(sys.stdin)
    TIMEOUT_S = float(asked["timeout_s"])
    together = [step for step in asked["steps"] if not step["alone"]]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        words = dict(zip((step["id"] for step in together), pool.map(tried, together), strict=True))
    words |= {step["id"]: tried(step) for step in asked["steps"] if step["alone"]}
    json.dump(words, sys.stdout)


if __name__ == "__main__":
    main()
