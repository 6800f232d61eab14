"""The supervisor of one range: namespace, rules, ports, listeners and packet record.

The rules are in force before any port exists. Any failure ends it with every port down.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NoReturn

from belljar.dataclass import dataclass, from_json
from belljar.errors import BelljarError, HostError
from belljar.network import ipc, syscalls
from belljar.network.packets import RECORD, PacketFile, Tap
from belljar.network.supervisor import links, netfilter, netlink
from belljar.network.supervisor.cell_dialler import IP_TRANSPARENT, CellDialler
from belljar.network.supervisor.links import differences, read_baseline, read_settings
from belljar.network.supervisor.netfilter import Flows
from belljar.network.syscalls import supervisor_filter
from belljar.plan.addresses import RangeLayout
from belljar.plan.network import DNS_PORT, NetworkPlan
from belljar.plan.nft import KnownRules, changed_rules, known_rules
from belljar.plan.rules import LOCAL_MARK, LOG_GROUP, LOG_SNAP_BYTES, DropReason, counts, logged
from belljar.process import PORTS_DOWN

_ANY: Final = "0.0.0.0"  # noqa: S104 - of the range's own namespace, which has no way out
_BACKLOG: Final = 1024  # The kernel caps it at `net.core.somaxconn`.
# For rules, devices and routes, and for the packet socket.
_RIGHTS: Final = (syscalls.CAP_NET_ADMIN, syscalls.CAP_NET_RAW)
_MAX_FILES: Final = 512  # `select` takes no descriptor above 1,023
# Datagrams in one turn: a cell that floods keeps no request of the owner's waiting.
_LOGS_AT_ONCE: Final = 256
_ALL_LOGS: Final = 1 << 16  # Many more than the socket has room for.
_MAX_REPORTED: Final = 20
_ANSWERED_AT_ONCE: Final = 256  # Connections in one message.
_CHANGED_BACK: Final = "its rules were changed, and changed back"


@dataclass(frozen=True, slots=True)
class SupervisorTask:
    layout: RangeLayout
    network: NetworkPlan
    nft: str
    uid: int | None
    check_every_s: float
    timeout_s: float


def run_supervisor(fds: list[int], parent: int) -> NoReturn:
    """Take `fds`: owner, gateway, document, stderr, rules, packet file, others held."""
    owner, gateway = socket.socket(fileno=fds[0]), socket.socket(fileno=fds[1])
    ipc.wait_for_go(owner, fds[3])
    document = ipc.from_file(fds[2])
    try:
        _make_namespace(owner, document["uid"], parent)
        rules = ipc.from_file(os.dup(fds[4]))
        # Loaded while everything else is made: there is no port yet to reach it by
        with netfilter.rules_loaded(document["nft"], fds[4]):
            task = from_json(SupervisorTask, document)
            supervisor = _Supervisor(task, owner, known_rules(rules), fds[5])
            supervisor.make(gateway)
        supervisor.confine()
        supervisor.work()
    except ipc.ClosedError:
        os._exit(0)
    except (BelljarError, OSError) as exc:
        hint = exc.hint if isinstance(exc, BelljarError) else ""
        if isinstance(exc, OSError) and exc.filename == RECORD:
            hint = "free some space for the run directories"
        failure = {"failed": _reason(exc), "host": isinstance(exc, HostError), "hint": hint}
        with suppress(ipc.ClosedError, TimeoutError):
            ipc.send(owner, failure)
    os._exit(1)


def _reason(exc: BelljarError | OSError) -> str:
    if isinstance(exc, BelljarError):
        return exc.what
    return f"{exc.filename or 'the kernel'}: {exc.strerror or exc}"


def _make_namespace(owner: socket.socket, uid: int | None, parent: int) -> None:
    if uid is None:
        # The owner maps its ids: it starts the programs that may do that
        _unshare(syscalls.CLONE_NEWUSER, "user")
        ipc.send(owner, {"unshared": True})
        if ipc.receive(owner) != ({"mapped": True}, []):
            raise ValueError("the owner has mapped no ids")
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        syscalls.die_with_parent(parent)
    _unshare(syscalls.CLONE_NEWNET, "net")
    syscalls.no_new_privileges()
    # In a user namespace of its own it enters the cells' namespaces itself, which needs one more
    rights = (*_RIGHTS, syscalls.CAP_SYS_ADMIN) if uid is None else _RIGHTS
    syscalls.become(uid, rights, ambient=True)
    # A search for survivors by an ordinary user needs to see its namespaces
    syscalls.set_dumpable(uid is None)
    syscalls.die_with_parent(parent)


def _unshare(kind: int, name: str) -> None:
    try:
        syscalls.unshare(kind)
    except OSError as exc:
        hint = "a container's or a service's seccomp or AppArmor profile may forbid it"
        if exc.errno == errno.ENOSPC:
            hint = f"as root: raise user.max_{name}_namespaces (sysctl), or run fewer ranges"
        what = f"the kernel gives the range no {name} namespace of its own: {exc.strerror}"
        raise HostError(what, where="unshare(2)", hint=hint) from exc


class _Supervisor:
    def __init__(
        self, task: SupervisorTask, owner: socket.socket, known: KnownRules, file: int
    ) -> None:
        self._task, self._owner, self._known = task, owner, known
        self._file = PacketFile(file, task.network.bounds.packet_record_bytes)
        # Else an owner that reads nothing would hold the thread that watches the rules.
        owner.settimeout(task.timeout_s)
        self._flows = Flows(task.layout)
        self._next_check = 0.0
        self._ports: dict[int, links.LivePort] = {}
        self._dialler: CellDialler | None = None

    def make(self, gateway: socket.socket) -> None:
        task = self._task
        self._kernel = links.prepare_namespace(task.layout)
        self._kernel_at_end = netlink.open_socket()
        _send_listeners(gateway, task.layout, task.network)
        if task.layout.proxy_port is not None:
            self._dialler = CellDialler(gateway)
        else:
            gateway.close()
        self._baseline = read_baseline(self._kernel, ())
        self._tap = Tap()
        self._log = netfilter.open_log(LOG_GROUP, LOG_SNAP_BYTES)

    def confine(self) -> None:
        task = self._task
        limit_bytes = syscalls.mapped_bytes() + task.network.bounds.supervisor_memory_bytes
        limits = {resource.RLIMIT_AS: limit_bytes, resource.RLIMIT_NOFILE: _MAX_FILES}
        syscalls.limit_resources(limits)
        syscalls.install_filter(supervisor_filter(may_enter=task.uid is None))
        self._changes = netfilter.open_changes()
        self._check()
        ipc.send(self._owner, {"started": True})

    def work(self) -> NoReturn:
        signal.signal(PORTS_DOWN, self._end_at_once)
        try:
            while True:
                self._turn()
        except BaseException:
            self._shut()
            raise

    def _end_at_once(self, *_: object) -> NoReturn:
        signal.signal(PORTS_DOWN, signal.SIG_IGN)  # a second one would read this one's replies
        # By a socket of its own: what was interrupted may have left a reply unread in the other
        with suppress(OSError):
            links.all_down(self._kernel_at_end)
        os._exit(1)

    def _turn(self) -> None:
        sources = [self._owner, self._log, self._changes, self._tap.socket]
        left_s = max(0.0, self._next_check - time.monotonic())
        waiting = [] if self._dialler is None else [*self._dialler.waiting]
        ready, dialled, _ = select.select(sources, waiting, [], left_s)
        if self._dialler is not None:
            for end in dialled:
                self._dialler.finish(end)
        if self._tap.socket in ready:
            self._tap.read_into(self._file)
            self._tell_answered()
        if self._log in ready:
            self._read_log(_LOGS_AT_ONCE)
        if self._changes in ready:
            self._end_as_changed()
        if self._owner in ready:
            self._handle(*ipc.receive(self._owner))
        if time.monotonic() >= self._next_check:
            self._check()
            for flow in self._flows.flush():
                self._report(flow=flow)

    def _read_log(self, max_datagrams: int) -> bool:
        for taken, datagram in enumerate(netfilter.read_all(self._log), 1):
            for packet in netfilter.parse_log(datagram):
                if (flow := self._flows.take(packet)) is not None:
                    self._report(flow=flow)
                if packet.reason == DropReason.CONNECTION and self._dialler is not None:
                    self._dialler.begin(packet.packet)
            if taken >= max_datagrams:
                return False
        return True

    def _handle(self, message: Mapping[str, Any], fds: list[int]) -> None:
        number = message["id"]
        try:
            match message["do"]:
                case "attach":
                    self._attach(message, fds)
                case "check":
                    self._check()
                case "end":
                    self._end(number)
        except (OSError, KeyError, StopIteration) as exc:
            reason = _reason(exc) if isinstance(exc, OSError) else repr(exc)
            self._report(refused=number, reason=reason)
        else:
            self._report(done=number)
        finally:
            for fd in fds:
                with suppress(OSError):
                    os.close(fd)

    def _attach(self, message: Mapping[str, Any], fds: list[int]) -> None:
        port = self._task.layout.cell(message["cell"])
        # A port of an earlier try, whose namespace the kernel may not have ended yet
        stale = {index for index, made in self._ports.items() if made.port == port}
        for link in netlink.list_links(self._kernel) if stale else ():
            if link.index in stale:
                with suppress(OSError):  # it has gone meanwhile
                    netlink.exchange(self._kernel, netlink.delete_link(link.index))
        # A copy, as `_handle` closes what came with the message.
        inner = netlink.open_socket(os.dup(fds[1])) if len(fds) > 1 else links.socket_within(fds[0])
        layout = self._task.layout
        bytes_per_s = links.line_bytes_per_s(self._tap.buffer_bytes, len(layout.cells))
        with inner:
            made = links.make_port(
                self._kernel,
                inner,
                fds[0],
                port,
                layout.resolver,
                offloads=bool(message["offloads"]),
                bytes_per_s=bytes_per_s,
            )
        self._ports[made.index] = made
        settings = {**self._baseline.settings, **read_settings((port.outer_device,))}
        self._baseline = replace(self._baseline, settings=settings)
        self._flows.cells[made.index] = port.name

    def _check(self) -> None:
        """End, all ports down, when anything has changed."""
        listed = self._look_at_rules(self._unexpected())
        # Only behind the last log can the rules' own count show that some were lost.
        if self._read_log(_ALL_LOGS):
            self._flows.count_lost(logged(listed))
        self._report(counters=self._counters(listed))

    def _look_at_rules(self, unexpected: Sequence[str] = ()) -> Mapping[str, Any]:
        # What has changed until now is in the listing
        notices = sum(1 for _ in netfilter.read_all(self._changes))
        listed = netfilter.list_rules(self._task.nft)
        # From the end of the last one: on a slow host there is time for other work.
        self._next_check = time.monotonic() + self._task.check_every_s
        changed = (*changed_rules(self._known, listed), *unexpected)
        self._end_if_changed(changed or (_CHANGED_BACK,) * (notices > 0))
        return listed

    def _end_as_changed(self) -> NoReturn:
        # Nothing passes from here on, not even while the changed rules are read back.
        self._shut()
        found = _CHANGED_BACK
        try:
            self._take_all()
            self._look_at_rules()
        except (BelljarError, OSError) as exc:
            found = f"its rules were changed, and can't be read: {_reason(exc)}"
        self._end_if_changed([found])
        os._exit(1)

    def _end_if_changed(self, differences: Sequence[str]) -> None:
        if differences:
            self._shut()
            self._report(breach=list(differences[:_MAX_REPORTED]))
            os._exit(1)

    def _unexpected(self) -> list[str]:
        devices = links.unexpected_devices(netlink.list_links(self._kernel), self._ports)
        # Twice: a listing during which a cell's device goes may lack what is there.
        found = [*devices]
        names = [made.port.outer_device for made in self._ports.values()]
        addresses = {index: made.port.address for index, made in self._ports.items()}
        for _ in range(0 if found else 2):
            now = read_baseline(self._kernel, names)
            if not (changed := differences(self._baseline, now, addresses)):
                return []
            found = changed
        return found

    def _counters(self, listed: Mapping[str, Any]) -> dict[str, int]:
        packets = counts(listed)
        return {
            **{str(reason): number for reason, number in packets.items()},
            "only_counted": sum(packets.values()) - packets[DropReason.ARP] - logged(listed),
            "packets_recorded": self._file.packets,
            "packets_not_recorded": self._tap.count_lost() + self._file.dropped_packets,
            "packets_cut": self._file.cut_packets,
            "datagrams_answered": self._file.datagrams,
            "logs_lost": self._flows.lost,
        }

    def _end(self, number: int) -> NoReturn:
        self._end_if_changed(self._unexpected())
        self._shut()
        self._take_all()
        listed = self._look_at_rules()
        while self._take_all():  # had been on their way when the ports were put down
            listed = self._look_at_rules()
        self._flows.count_lost(logged(listed))
        self._tell_answered()
        for flow in self._flows.flush():
            self._report(flow=flow)
        self._report(counters=self._counters(listed))
        self._report(done=number)
        os._exit(0)

    def _tell_answered(self) -> None:
        answered, dialler = self._file.answered, self._dialler
        as_told = bytes if dialler is None else dialler.as_dialled
        while told := answered[:_ANSWERED_AT_ONCE]:
            del answered[:_ANSWERED_AT_ONCE]
            self._report(answered=[(as_told(name).hex(), is_long) for name, is_long in told])

    def _take_all(self) -> bool:
        before = self._file.packets, self._flows.taken
        while self._tap.read_into(self._file):
            pass
        while not self._read_log(_ALL_LOGS):
            pass
        return before != (self._file.packets, self._flows.taken)

    def _shut(self) -> None:
        with suppress(OSError):
            links.all_down(self._kernel)

    def _report(self, **message: Any) -> None:  # noqa: ANN401 - JSON values
        """Send it; frames are recorded while the owner reads nothing."""
        give_up = time.monotonic() + self._task.timeout_s
        while (left_s := give_up - time.monotonic()) > 0:
            readable, writable, _ = select.select([self._tap.socket], [self._owner], [], left_s)
            if writable:
                with suppress(TimeoutError):  # the socket's, which is the same
                    ipc.send(self._owner, message)
                    return
                break
            if readable:
                self._tap.read_into(self._file)
        # No `OSError`, which would be reported to it: an unwatched range ends.
        raise RuntimeError("the owner has read nothing for too long")


def _send_listeners(gateway: socket.socket, layout: RangeLayout, network: NetworkPlan) -> None:
    found = {"dns_udp": socket.socket(socket.AF_INET, socket.SOCK_DGRAM)}
    # UDP is bound to one address: of several, the kernel would not know from which to answer.
    found["dns_udp"].bind((layout.resolver, DNS_PORT))
    ports = [(str(port), port) for port in network.gateway_ports() if port != DNS_PORT]
    for name, port in (*ports, ("sink", layout.sink_port), ("cells", layout.proxy_port)):
        if port is not None:
            listener = found[name] = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            if not name.isdecimal():  # it answers for addresses that are not the namespace's own
                listener.setsockopt(socket.IPPROTO_IP, IP_TRANSPARENT, 1)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, LOCAL_MARK)
            listener.bind((_ANY, port))
            listener.listen(_BACKLOG)
    names = list(found)
    for at in range(0, len(names), ipc.MAX_DESCRIPTORS):
        part = names[at : at + ipc.MAX_DESCRIPTORS]
        fds = [found[name].fileno() for name in part]
        ipc.send(gateway, {"listeners": part, "more": at + len(part) < len(names)}, fds)
    for listener in found.values():  # from here on only the gateway holds them
        listener.close()
