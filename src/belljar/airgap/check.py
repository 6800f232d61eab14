"""The check of the air gap: every way beyond this host, by trying and by looking."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from belljar.airgap.finding import Finding, looked
from belljar.airgap.interfaces import (
    interface_finding,
    is_inner,
    namespaces_finding,
    own_links,
)
from belljar.airgap.looks import look
from belljar.airgap.tries import (
    address_findings,
    proxy_finding,
    resolver_finding,
    send_findings,
    vsock_finding,
)

# systemd-resolved's second file has the servers behind its local one.
_RESOLVERS: Final = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))


def check_air_gap(address: str = "") -> tuple[Finding, ...]:
    """Every finding on this host now.

    Sends nothing beyond it, except to `address`, an IP address that the operator named.
    Raises `ValueError` when that is no address.
    """
    return tuple(_findings(address))


def _findings(address: str) -> Iterator[Finding]:
    try:
        links = own_links()
    except OSError as error:
        yield looked("interfaces", unknown=[f"can't be listed: {error.strerror}"], absent="")
    else:
        yield from map(interface_finding, links)
        inner = {link.index for link in links if is_inner(link)}
        yield from address_findings({link.index: link.name for link in links}, inner)
    yield namespaces_finding()
    yield resolver_finding(_RESOLVERS)
    yield proxy_finding(os.environ)
    yield vsock_finding()
    yield from look()
    if address:
        yield from send_findings(address)
