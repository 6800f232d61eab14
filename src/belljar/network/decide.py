"""A flow's address, port, names, method and target → a stand-in, or a refusal. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from ipaddress import IPv4Address
from typing import Final, Literal

from belljar.plan.addresses import NameAddress, RangeLayout
from belljar.plan.network import CATCH_ALL_PORTS, PortPlan, StandInPlan
from belljar.policy.guarding import METADATA_ADDRESS

CATCH_ALL: Final = "catch-all"  # The stand-in behind `layout.catch_all`; the policy reserves it.
UPSTREAM: Final = "upstream"  # The kind of what is real. No policy's stand-in has it.
# RFC 1035 section 3.1: 255 on the wire, without the root's and the first length byte.
MAX_NAME_BYTES: Final = 253
HTTP: Final = frozenset({"http", "tls"})  # Of a port: `tls` is HTTP in TLS
ENCRYPTED: Final = frozenset({"tls", "smtps"})

# RFC 1123 section 2.1, and the underscore that service names have (RFC 8552).
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_PORT: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
# RFC 3986 section 3.2.2: what follows userinfo; a userinfo is refused by having no place in it.
_ABSOLUTE: Final = re.compile(
    rb"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>.*)", re.DOTALL
)


class Refusal(StrEnum):
    NO_SUCH_ADDRESS = "no name has this address"
    NOT_THE_GATEWAY = "the gateway does not answer for this address"
    NO_SUCH_PORT = "the stand-in does not have this port"
    NO_HTTP_HERE = "no HTTP is spoken at this port"
    NO_CLIENT_HELLO = "a request before a ClientHello"
    SNI_AND_HOST_DIFFER = "SNI and Host differ"
    NO_SNI = "no SNI"
    SNI_IS_NO_NAME = "SNI is no host name"
    CONNECT = "CONNECT"
    NO_HOST = "no Host"
    OTHER_SCHEME = "the target's scheme is another"
    TARGET_IS_NO_PATH = "the target is no path"
    HOST_AND_TARGET_DIFFER = "Host and target differ"
    HOST_IS_ADDRESS = "Host is an address"
    OTHER_PORT_IN_HOST = "the port in Host is not the one that was dialled"
    HOST_IS_NO_NAME = "Host is no host name"
    METHOD_NOT_TAKEN = "the upstream does not take this method"
    NOT_IN_POLICY = "the policy does not have this name"
    OTHER_ADDRESS = "the name has another address"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    method: str
    target: bytes
    hosts: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    address: str
    port: int
    sni: str | None = None
    hello: bool = False
    request: RequestHead | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowVerdict:
    allowed: bool
    stand_in: str = ""
    reason: Refusal | Literal[""] = ""
    protocol: str = ""
    name: str = ""


class _RefusedFlowError(Exception):
    def __init__(self, reason: Refusal) -> None:
        self.reason = reason


def _refuse_if(condition: object, reason: Refusal) -> None:
    if condition:
        raise _RefusedFlowError(reason)


def decide(flow: Flow, layout: RangeLayout, stand_ins: Sequence[StandInPlan]) -> FlowVerdict:
    """Judge a flow so far; call again with the ClientHello, and with each request.

    It is allowed only if address and port are a stand-in's, and every name in it (SNI, Host, an
    absolute target) is one name with that address by the policy.
    """
    stand_in = protocol = name = ""
    ports: Sequence[PortPlan] = CATCH_ALL_PORTS
    reason: Refusal | Literal[""] = ""
    owner: StandInPlan | None = None
    try:
        if flow.address != layout.catch_all:
            named = next((item for item in layout.names if item.address == flow.address), None)
            if named is None:
                raise _RefusedFlowError(Refusal.NO_SUCH_ADDRESS)
            owner = next((item for item in stand_ins if item.id == named.stand_in), None)
            if owner is None or owner.is_target:
                raise _RefusedFlowError(Refusal.NOT_THE_GATEWAY)
            ports = owner.ports
        protocol = next((port.protocol for port in ports if port.number == flow.port), "")
        _refuse_if(not protocol, Refusal.NO_SUCH_PORT)
        stand_in = CATCH_ALL if owner is None else owner.id
        if name := _claimed_name(flow, protocol):
            found = find(name, layout)
            is_simulated = layout.catch_all == flow.address and name != METADATA_ADDRESS
            _refuse_if(found is None and not is_simulated, Refusal.NOT_IN_POLICY)
            _refuse_if(found and found.address != flow.address, Refusal.OTHER_ADDRESS)
            if owner is not None and owner.kind == UPSTREAM and flow.request is not None:
                is_taken = flow.request.method in owner.settings["methods"]
                _refuse_if(not is_taken, Refusal.METHOD_NOT_TAKEN)
    except _RefusedFlowError as refused:
        reason = refused.reason
    return FlowVerdict(
        allowed=not reason, stand_in=stand_in, reason=reason, protocol=protocol, name=name
    )


def canonical_name(raw: str | bytes) -> str | None:
    """Return a host name in lower case without its final dot, else None.

    An IP address is none, as any client spells it (last label of digits or `0x…`).
    """
    if not raw.isascii():
        return None
    name = (raw.decode() if isinstance(raw, bytes) else raw).lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > MAX_NAME_BYTES or not all(_LABEL.fullmatch(label) for label in labels):
        return None
    return None if labels[-1].isdigit() or labels[-1].startswith("0x") else name


def find(name: str, layout: RangeLayout) -> NameAddress | None:
    """Return the exact entry, else a wildcard's one label up."""
    wildcard = "*." + name.partition(".")[2]
    found = None
    for item in layout.names:
        if item.pattern == name:
            return item
        if item.pattern == wildcard:
            found = item
    return found


def known_to(cell: str, layout: RangeLayout, stand_ins: Sequence[StandInPlan]) -> RangeLayout:
    own = next((item for item in stand_ins if item.id == cell), None)
    hidden = {item.id for item in stand_ins if own is not None and own.is_apart_from(item)}
    visible = tuple(name for name in layout.names if name.stand_in not in hidden)
    return replace(layout, names=visible)


def split_target(target: bytes) -> tuple[bytes | None, bytes, bytes]:
    """Return (authority, path, query): RFC 9112 section 3.2.2."""
    absolute = _ABSOLUTE.fullmatch(target)
    rest = absolute["rest"] if absolute else target
    path, _, query = rest.partition(b"?")
    return (absolute["authority"] if absolute else None), path or b"/", query


def _claimed_name(flow: Flow, protocol: str) -> str:
    sni = None
    if protocol in ENCRYPTED and flow.hello:
        if flow.sni is None:
            raise _RefusedFlowError(Refusal.NO_SNI)
        if (sni := canonical_name(flow.sni)) is None:
            raise _RefusedFlowError(Refusal.SNI_IS_NO_NAME)
    if flow.request is None:
        return sni or ""
    _refuse_if(protocol not in HTTP, Refusal.NO_HTTP_HERE)
    _refuse_if(protocol == "tls" and sni is None, Refusal.NO_CLIENT_HELLO)
    request = flow.request
    _refuse_if(request.method.upper() == "CONNECT", Refusal.CONNECT)
    _refuse_if(not request.hosts, Refusal.NO_HOST)
    authority, path, _ = split_target(request.target)
    scheme = request.target.partition(b"://")[0].lower()
    is_other = scheme != (b"https" if protocol == "tls" else b"http")
    _refuse_if(authority is not None and is_other, Refusal.OTHER_SCHEME)
    is_asterisk = request.target == b"*" and request.method == "OPTIONS"
    _refuse_if(not path.startswith(b"/") and not is_asterisk, Refusal.TARGET_IS_NO_PATH)
    claimed = (*request.hosts, *(() if authority is None else (authority,)))
    names = {_authority(value, flow) for value in claimed}
    _refuse_if(len(names) > 1, Refusal.HOST_AND_TARGET_DIFFER)
    _refuse_if(sni is not None and names != {sni}, Refusal.SNI_AND_HOST_DIFFER)
    return names.pop()


def _authority(raw: bytes, flow: Flow) -> str:
    # The metadata service's address is a name of its own: clients use no other
    _refuse_if(raw.startswith(b"["), Refusal.HOST_IS_ADDRESS)
    host, colon, port = raw.partition(b":")
    is_dialled = _PORT.fullmatch(port.decode("latin-1")) and int(port) == flow.port
    _refuse_if(colon and not is_dialled, Refusal.OTHER_PORT_IN_HOST)
    if host == METADATA_ADDRESS.encode():
        return METADATA_ADDRESS
    if (name := canonical_name(host)) is not None:
        return name
    with suppress(ValueError):
        IPv4Address(host.decode("ascii"))
        raise _RefusedFlowError(Refusal.HOST_IS_ADDRESS)
    raise _RefusedFlowError(Refusal.HOST_IS_NO_NAME)
