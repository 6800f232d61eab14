"""Watches the interfaces of this network namespace while a run must be air-gapped."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final

from belljar.airgap.finding import State
from belljar.airgap.interfaces import evidence_of, state_of
from belljar.network.supervisor import netlink

_GROUP_LINK: Final = 1  # RTMGRP_LINK
_NEW_LINK: Final = 16
_RECEIVE_BYTES: Final = 1 << 16
_BUFFER_BYTES: Final = 1 << 20
_STOP_TIMEOUT_S: Final = 5.0


class LinkWatch:
    """Calls `on_change` with each interface that comes up, from a thread of its own.

    What the kernel could not deliver is a change too. Begins when it is made. Raises `OSError`.
    """

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._kernel = netlink.open_socket()
        try:
            self._kernel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            self._kernel.bind((0, _GROUP_LINK))
            self._kernel.settimeout(0)
            self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        except OSError:
            self._kernel.close()
            raise
        self._thread = threading.Thread(target=self._run, name="air gap", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Report what has arrived, and end."""
        os.eventfd_write(self._wake, 1)
        self._thread.join(_STOP_TIMEOUT_S)
        if self._thread.is_alive():
            self._on_change("the watch of the interfaces did not end")
            return  # its descriptors are still in use
        self._kernel.close()
        os.close(self._wake)

    def _run(self) -> None:
        try:
            poll, is_over = select.poll(), False
            for descriptor in (self._kernel.fileno(), self._wake):
                poll.register(descriptor, select.POLLIN)
            while not is_over:
                is_over = self._wake in dict(poll.poll())
                for change in self._changes():
                    self._on_change(change)
        except Exception as error:  # noqa: BLE001 - a watch that ends early is a change
            self._on_change(f"the watch of the interfaces failed: {type(error).__name__}: {error}")

    def _changes(self) -> Iterator[str]:
        while True:
            try:
                reply = self._kernel.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError as error:  # ENOBUFS: messages are lost
                yield f"changes of the interfaces were lost: {error.strerror}"
                continue
            yield from changes_in(reply)


def changes_in(reply: bytes) -> Iterator[str]:
    """The interfaces that are up, in the kernel's messages. Pure."""
    for kind, payload in netlink.messages(reply):
        if kind == _NEW_LINK and len(payload) >= netlink.LINK_BYTES:
            link = netlink.parse_link(payload)
            if state_of(link) is not State.ABSENT:
                yield evidence_of(link)
