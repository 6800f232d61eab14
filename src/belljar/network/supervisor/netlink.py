"""The rtnetlink messages that a range's links need (linux/rtnetlink.h, if_link.h, veth.h)."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from typing import Final

_HEADER: Final = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_ATTRIBUTE: Final = struct.Struct("=HH")  # rtattr: length with this head, type
_LINK: Final = struct.Struct("=BxHiII")  # ifinfomsg: family, type, index, flags, mask of changes
LINK_BYTES: Final = _LINK.size
_ADDRESS: Final = struct.Struct("=BBBBI")  # ifaddrmsg: family, prefix, flags, scope, index
# rtmsg: family, both prefixes, TOS, table, protocol, scope, type (a rule's action), flags.
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_NEIGHBOUR: Final = struct.Struct("=BxxxiHBB")  # ndmsg: family, index, state, flags, type
_QUEUE: Final = struct.Struct("=BxxxiIII")  # tcmsg: family, index, handle, parent, info
# tc_ratespec: table's unit, link layer, overhead, alignment, least, rate
_RATE: Final = struct.Struct("=BBHhHI")
_LIMITS: Final = struct.Struct("=III")  # The end of tc_tbf_qopt: limit, bucket, MTU
_NEW_LINK, _DELETE_LINK, _GET_LINK = 16, 17, 18
_NEW_ADDRESS, _NEW_ROUTE, _NEW_NEIGHBOUR, _NEW_RULE = 20, 24, 28, 32
_GET_ROUTE, _GET_RULE, _NEW_QUEUE = 26, 34, 36
_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300
_NEW: Final = 0x200 | 0x400  # what is there already is not touched (NLM_F_EXCL, NLM_F_CREATE)
# An acknowledgement is an NLMSG_ERROR too, with the code 0.
_ERROR, _DONE = 2, 3
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_LINK = 1, 3, 5
_IFLA_LINKINFO, _IFLA_NET_NS_FD, _IFLA_LINK_NETNSID = 18, 28, 37
_IFLA_AF_SPEC, _ADDR_GEN_MODE = 26, 8
_IFLA_INFO_KIND, _IFLA_INFO_DATA, _VETH_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_CACHEINFO, _RTA_TABLE, _RTA_VIA = 1, 4, 5, 12, 15, 18
_NDA_DST, _NDA_LLADDR = 1, 2
_TCA_KIND, _TCA_OPTIONS, _TBF_PARMS, _TBF_BURST = 1, 2, 1, 6
_ROOT: Final = 0xFFFF_FFFF  # TC_H_ROOT: in place of the device's own queue
_ETHERNET: Final = 1  # so that the kernel asks for no table of times
_FRA_IIFNAME, _FRA_PRIORITY, _FRA_FWMARK, _FRA_TABLE = 3, 6, 10, 15
_NUD_PERMANENT: Final = 0x80  # linux/neighbour.h
_IFF_UP: Final = 1
_IFF_LOOPBACK, _IFF_LOWER_UP = 0x8, 0x1_0000
# The kernel looks into the local table before any other (ip-rule(8)).
_TABLE_MAIN, TABLE_LOCAL = 254, 255
_PROTO_STATIC: Final = 4
_SCOPE_UNIVERSE, _SCOPE_LINK, _SCOPE_HOST = 0, 253, 254
_TYPE_UNICAST, _TYPE_LOCAL = 1, 2
# NLA_F_NESTED: newer parts of the kernel take no nested attributes without it.
_NESTED: Final = 0x8000
# The kernel's pieces of a listing are smaller; the end of a larger datagram would be lost.
_MAX_REPLY_BYTES: Final = 1 << 16
# The host's own tables may be long. A list that was cut would hide a network: it is an error.
_MAX_DUMP_BYTES: Final = 4 << 20
# The kernel carries a request out before `send` returns: nothing waits so long in practice.
_TIMEOUT_S: Final = 5.0
# What recording a frame costs besides its bytes: as much as so many of them.
_FRAME_BYTES: Final = 2048
_BURST_BYTES: Final = 256 << 10
# More than a microVM's wire may have waiting, so that it waits and nothing is lost
_QUEUE_BYTES: Final = 3 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A `peer` is a number and a namespace's id (None: here)."""

    index: int
    name: str
    is_up: bool
    peer: tuple[int, int | None] | None = None
    kind: str = ""
    is_loopback: bool = False
    has_carrier: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The field `rest` has all else but use counts."""

    to: IPv4Network | IPv6Network
    device: int | None
    table: int
    kind: int
    rest: frozenset[tuple[int, bytes]]

    def is_near(self) -> bool:
        """Return whether it is this namespace's address, or a link's other end."""
        has_gateway = any(kind in (_RTA_GATEWAY, _RTA_VIA) for kind, _ in self.rest)
        is_direct = self.kind == _TYPE_UNICAST and self.device is not None and not has_gateway
        return is_direct or self.kind == _TYPE_LOCAL

    def __str__(self) -> str:
        return f"{self.to} by device {self.device} in table {self.table}, kind {self.kind}"


def open_socket(fd: int | None = None, family: int = socket.NETLINK_ROUTE) -> socket.socket:
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    kernel = socket.socket(socket.AF_NETLINK, kind, family, fileno=fd)
    kernel.settimeout(_TIMEOUT_S)
    return kernel


def veth(name: str, mac: str, peer_name: str, peer_mac: str, peer_namespace_fd: int) -> bytes:
    peer = _link() + attribute(_IFLA_IFNAME, peer_name)
    peer += attribute(_IFLA_ADDRESS, _mac(peer_mac)) + attribute(_IFLA_NET_NS_FD, peer_namespace_fd)
    data = attribute(_IFLA_INFO_DATA | _NESTED, attribute(_VETH_PEER | _NESTED, peer))
    info = attribute(_IFLA_LINKINFO | _NESTED, attribute(_IFLA_INFO_KIND, "veth") + data)
    body = _link() + attribute(_IFLA_IFNAME, name) + attribute(_IFLA_ADDRESS, _mac(mac)) + info
    return message(_NEW_LINK, body, flags=_NEW)


def set_link(index: int, *, up: bool) -> bytes:
    return message(_NEW_LINK, _link(index, _IFF_UP if up else 0, _IFF_UP))


def without_ipv6_address(index: int) -> bytes:
    mode = attribute(socket.AF_INET6 | _NESTED, attribute(_ADDR_GEN_MODE, b"\1"))
    return message(_NEW_LINK, _link(index) + attribute(_IFLA_AF_SPEC | _NESTED, mode))


def delete_link(index: int) -> bytes:
    return message(_DELETE_LINK, _link(index))


def address(index: int, ip: str) -> bytes:
    packed = IPv4Address(ip).packed
    body = _ADDRESS.pack(socket.AF_INET, 32, 0, _SCOPE_UNIVERSE, index)
    body += attribute(_IFA_LOCAL, packed) + attribute(_IFA_ADDRESS, packed)
    return message(_NEW_ADDRESS, body, flags=_NEW)


def route(index: int, to: str, *, gateway: str = "", local_table: int = 0) -> bytes:
    """Reach a network over the device. `local_table`: its addresses are this namespace's own."""
    address, _, bits = to.partition("/")
    length, table = int(bits or 32), local_table or _TABLE_MAIN
    scope, kind = _SCOPE_UNIVERSE if gateway else _SCOPE_LINK, _TYPE_UNICAST
    if local_table:
        scope, kind = _SCOPE_HOST, _TYPE_LOCAL
    body = _ROUTE.pack(socket.AF_INET, length, 0, 0, table, _PROTO_STATIC, scope, kind, 0)
    body += attribute(_RTA_DST, IPv4Address(address).packed) if length else b""
    via = attribute(_RTA_GATEWAY, IPv4Address(gateway).packed) if gateway else b""
    return message(_NEW_ROUTE, body + attribute(_RTA_OIF, index) + via, flags=_NEW)


def rule(priority: int, table: int = _TABLE_MAIN, *, mark: int = 0) -> bytes:
    body = _ROUTE.pack(socket.AF_INET, 0, 0, 0, 0, 0, 0, 1, 0)  # FR_ACT_TO_TBL
    body += attribute(_FRA_TABLE, table) + attribute(_FRA_PRIORITY, priority)
    body += attribute(_FRA_FWMARK, mark) if mark else attribute(_FRA_IIFNAME, "lo")
    return message(_NEW_RULE, body, flags=_NEW)


def neighbour(index: int, ip: str, mac: str) -> bytes:
    body = _NEIGHBOUR.pack(socket.AF_INET, index, _NUD_PERMANENT, 0, 0)
    body += attribute(_NDA_DST, IPv4Address(ip).packed) + attribute(_NDA_LLADDR, _mac(mac))
    return message(_NEW_NEIGHBOUR, body, flags=_NEW)


def line(index: int, bytes_per_s: int) -> bytes:
    """Limit a device's outbound rate by a token bucket (tc-tbf(8))."""
    rate = _RATE.pack(0, _ETHERNET, _FRAME_BYTES, 0, 0, bytes_per_s)
    parameters = rate + bytes(_RATE.size) + _LIMITS.pack(_QUEUE_BYTES, 0, 0)
    options = attribute(_TBF_PARMS, parameters) + attribute(_TBF_BURST, _BURST_BYTES)
    body = _QUEUE.pack(0, index, 0, _ROOT, 0) + attribute(_TCA_KIND, "tbf")
    return message(_NEW_QUEUE, body + attribute(_TCA_OPTIONS | _NESTED, options), flags=_NEW)


def exchange(kernel: socket.socket, *requests: bytes) -> None:
    for request in requests:
        for _ in _replies(kernel, request):
            pass


def list_links(kernel: socket.socket) -> list[Link]:
    listed = _dump(kernel, _GET_LINK, _link(), _NEW_LINK)
    return [parse_link(payload) for payload in listed if len(payload) >= _LINK.size]


def parse_link(payload: bytes) -> Link:
    _, _, index, flags, _ = _LINK.unpack_from(payload)
    found = dict(attributes(payload[_LINK.size :]))
    about = dict(attributes(found.get(_IFLA_LINKINFO, b"")))
    peer, namespace = (
        # -1: a namespace that has no id here
        int.from_bytes(found[kind], sys.byteorder, signed=True) if kind in found else None
        for kind in (_IFLA_LINK, _IFLA_LINK_NETNSID)
    )
    return Link(
        index=index,
        name=found.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode("ascii", "replace"),
        is_up=bool(flags & _IFF_UP),
        peer=None if peer is None else (peer, namespace),
        kind=about.get(_IFLA_INFO_KIND, b"").rstrip(b"\0").decode("ascii", "replace"),
        is_loopback=bool(flags & _IFF_LOOPBACK),
        has_carrier=bool(flags & _IFF_LOWER_UP),
    )


def list_routes(kernel: socket.socket) -> list[Route]:
    listed = _dump_both(kernel, _GET_ROUTE, _NEW_ROUTE)
    return [parse_route(payload) for payload in listed if len(payload) >= _ROUTE.size]


def list_rules(kernel: socket.socket) -> list[bytes]:
    return _dump_both(kernel, _GET_RULE, _NEW_RULE)


def _dump_both(kernel: socket.socket, request: int, wanted: int) -> list[bytes]:
    # Of IPv4 and of IPv6.
    heads = [_ROUTE.pack(family, *[0] * 8) for family in (socket.AF_INET, socket.AF_INET6)]
    return [each for head in heads for each in _dump(kernel, request, head, wanted)]


def parse_route(payload: bytes) -> Route:
    """Read the kernel's route message. Raises `ValueError`."""
    family, bits, *rest, table, protocol, scope, kind, _flags = _ROUTE.unpack_from(payload)
    found = dict(attributes(payload[_ROUTE.size :]))
    found.pop(_RTA_CACHEINFO, None)
    to = found.pop(_RTA_DST, b"")
    device, listed = found.pop(_RTA_OIF, None), found.pop(_RTA_TABLE, None)
    is_v4 = family == socket.AF_INET
    return Route(
        # A default route is listed without a destination.
        to=IPv4Network((to or bytes(4), bits)) if is_v4 else IPv6Network((to or bytes(16), bits)),
        device=None if device is None else int.from_bytes(device, sys.byteorder),
        # The header's field is one byte; the attribute has the whole number.
        table=table if listed is None else int.from_bytes(listed, sys.byteorder),
        kind=kind,
        rest=frozenset({(0, bytes((*rest, protocol, scope))), *found.items()}),
    )


def as_listed(request: bytes) -> Route:
    return parse_route(request[_HEADER.size :])


def _dump(kernel: socket.socket, request: int, body: bytes, wanted: int) -> list[bytes]:
    replies = _replies(kernel, message(request, body, flags=_DUMP, ack=False))
    return [payload for kind, payload in replies if kind == wanted]


def _replies(kernel: socket.socket, request: bytes) -> Iterator[tuple[int, bytes]]:
    kernel.send(request)
    taken = 0
    while taken < _MAX_DUMP_BYTES:
        reply = kernel.recv(_MAX_REPLY_BYTES)
        taken += len(reply)
        for kind, payload in messages(reply):
            if kind == _ERROR and (code := int.from_bytes(payload[:4], sys.byteorder, signed=True)):
                raise OSError(-code, os.strerror(-code), "netlink")
            if kind in (_DONE, _ERROR):  # 0 acknowledges
                return
            yield kind, payload
    raise OSError("the kernel's list is too long")


def messages(reply: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(reply):
        length, kind, _, _, _ = _HEADER.unpack_from(reply, at)
        if length < _HEADER.size or at + length > len(reply):
            return
        yield kind, reply[at + _HEADER.size : at + length]
        at += (length + 3) & ~3


def attributes(payload: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(payload):
        length, kind = _ATTRIBUTE.unpack_from(payload, at)
        if length < _ATTRIBUTE.size or at + length > len(payload):
            return
        # Without the flags NLA_F_NESTED and NLA_F_NET_BYTEORDER.
        yield kind & 0x3FFF, payload[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3


def _link(index: int = 0, flags: int = 0, changes: int = 0) -> bytes:
    return _LINK.pack(0, 0, index, flags, changes)


def message(kind: int, body: bytes, *, flags: int = 0, ack: bool = True) -> bytes:
    words = _REQUEST | flags | (_ACK if ack else 0)
    return _HEADER.pack(_HEADER.size + len(body), kind, words, 1, 0) + body


def attribute(kind: int, value: bytes | int | str) -> bytes:
    if isinstance(value, int):
        value = struct.pack("=I", value)
    elif isinstance(value, str):
        value = value.encode("ascii") + b"\0"
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))
