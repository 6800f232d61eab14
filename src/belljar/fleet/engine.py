"""The one module that imports Ray: nodes, processes on them, bytes back, signs of life.

Ray lets everybody who has its token run code on every node. So the token is on, and only loopback
and private addresses are used.
"""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from belljar.dataclass import dataclass
from belljar.errors import HostError, PolicyError
from belljar.fleet import node as on_node
from belljar.units import printable

BEAT_S: Final = 2.0
# A worker process imports Ray and this package before its first answer.
START_S: Final = 180.0
CELLS: Final = "belljar_cells"
MARKER: Final = 0.001
"""How much of a tier's marker a unit takes: it counts nothing."""
TRANSFER_S: Final = 60.0
"""A piece of an archive that takes longer comes from a node that hangs."""
HINT_EXTRA: Final = "pip install 'belljar-sandbox[fleet]'"
_CALL_S: Final = 660.0
_AUTH_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"


def parse_address(fleet: str) -> str:
    """`ray://HOST:PORT` → its address; `ray` → that of RAY_ADDRESS, or "". Raises `PolicyError`."""
    engine, _, address = fleet.partition("://")
    if engine != "ray":
        raise PolicyError(
            f"the fleet `{printable(fleet)}` is not known", hint="use ray, or ray://HOST:PORT"
        )
    if address := address or os.environ.get("RAY_ADDRESS", ""):
        check_private(address.rpartition(":")[0], where=f"--fleet {fleet}, {address}")
    return address


def check_private(host: str, *, where: str) -> None:
    """Raise `PolicyError` for an address that is neither loopback nor private."""
    try:
        found = {each[4][0] for each in socket.getaddrinfo(host.strip("[]"), None)}
        is_near = all(ipaddress.ip_address(each).is_private for each in found)
    except (OSError, ValueError) as error:
        raise PolicyError(
            f"the fleet's address can't be used: {error}",
            where=printable(where),
            hint="write HOST:PORT of the cluster's head",
        ) from error
    # 0.0.0.0 counts as private, and is every address of the machine.
    if not is_near or {"0.0.0.0", "::"} & found:  # noqa: S104 - refused here
        raise PolicyError(
            "the fleet's address is public: whoever reaches Ray's port may run code on each node",
            where=printable(where),
            hint="use a private network, or a tunnel to loopback",
        )


def node_command(
    *, head: bool, address: str, ip: str, port: int, resources: Mapping[str, float]
) -> list[str]:
    """The command line of a node's processes, which run until interrupted. Raises `HostError`."""
    program = Path(sys.executable).with_name("ray")
    if not program.exists():
        raise HostError("Ray is not installed", hint=HINT_EXTRA)
    words = [str(program), "start", "--block"]
    words += ["--head", f"--port={port}", "--include-dashboard=false"] if head else []
    words += [] if head else [f"--address={address}"]
    return [*words, f"--node-ip-address={ip}", f"--resources={json.dumps(dict(resources))}"]


@dataclass(slots=True, kw_only=True, eq=False)
class Task:
    """A unit that was given to Ray. `node_id` is known when it runs."""

    stream: Any
    node_id: str = ""


class Fleet:
    """A connection to a Ray cluster, for one evaluation."""

    def __init__(self, ray: Any) -> None:  # noqa: ANN401 - imported late
        self._ray = ray
        self._watches: dict[str, Any] = {}
        self._beats: dict[str, Any] = {}
        self._number, self._is_stopping = 0, False
        self._closed = threading.Event()
        self.last_heard_s: dict[str, float] = {}

    def offers(self) -> dict[str, Mapping[str, float]]:
        """What each live node offers that offers cells."""
        return {
            each["NodeID"]: each["Resources"]
            for each in self._ray.nodes()
            if each["Alive"] and each["Resources"].get(CELLS)
        }

    def put(self, content: bytes) -> Any:  # noqa: ANN401 - Ray's reference
        """Bytes that each node fetches once."""
        return self._ray.put(content)

    def on_each(
        self,
        nodes: Sequence[str],
        function: Callable[..., Any],
        *arguments: object,
        within_s: float = _CALL_S,
    ) -> dict[str, Any]:
        """The function's results on each node; an exception is a result."""
        remote = self._ray.remote(function)
        references = {
            each: remote.options(
                num_cpus=0, max_retries=0, label_selector={"ray.io/node-id": each}
            ).remote(*arguments)
            for each in nodes
        }
        ends_s, found = time.monotonic() + within_s, {}
        for each, reference in references.items():
            try:
                left_s = max(0.1, ends_s - time.monotonic())
                found[each] = self._ray.get(reference, timeout=left_s)
            except Exception as error:  # noqa: BLE001 - whatever a node raises is its own
                found[each] = error
        return found

    def start(
        self,
        arguments: Sequence[object],
        *,
        cells: int,
        nodes: Sequence[str],
        resources: Mapping[str, float],
    ) -> Task:
        """Run a unit on one of these nodes, when it has room for so many cells."""
        remote = self._ray.remote(on_node.run_unit)
        stream = remote.options(
            num_cpus=0,
            max_retries=0,
            num_returns="streaming",
            resources={CELLS: cells, **resources},
            label_selector={"ray.io/node-id": f"in({','.join(nodes)})"},
            # What the head has not taken yet waits on the node, not in memory.
            _generator_backpressure_num_objects=4,
        ).remote(*arguments)
        return Task(stream=stream)

    def ready(self, tasks: Sequence[Task], *, timeout_s: float) -> Iterator[tuple[Task, Any]]:
        """What the tasks yielded by now: an item, None at the end, or the exception of its end."""
        if not tasks:
            time.sleep(timeout_s)
            return
        by_stream = {id(task.stream): task for task in tasks}
        streams = [task.stream for task in tasks]
        done, _ = self._ray.wait(streams, timeout=timeout_s, fetch_local=False)
        for stream in done:
            item: Any
            try:
                item = self._ray.get(next(stream), timeout=TRANSFER_S)
            except StopIteration:
                item = None
            except Exception as error:  # noqa: BLE001 - of the node, or of Ray about it
                item = error
            yield by_stream[id(stream)], item

    def cancel(self, task: Task) -> None:
        """Forget a task; where it runs, its guard ends it."""
        with suppress(Exception):
            self._ray.cancel(task.stream, force=True)

    def watch(self, fleet: str, nodes: Sequence[str]) -> None:
        """Begin to give and to expect signs of life, in a thread: verifying may take long."""
        actor = self._ray.remote(on_node.Watch)
        for each in nodes:
            self._watches[each] = actor.options(
                num_cpus=0, max_restarts=-1, label_selector={"ray.io/node-id": each}
            ).remote(fleet)
            self.last_heard_s[each] = time.monotonic() + START_S
        threading.Thread(target=self._beat, name="fleet-beats", daemon=True).start()

    def stop(self) -> None:
        """Have the nodes end their units."""
        self._is_stopping = True

    def close(self) -> None:
        """Give no more signs of life."""
        self._closed.set()

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_S / 2):
            self._beat_once(time.monotonic())

    def _beat_once(self, now: float) -> None:
        """Take the answers, and give a sign of life to each node that gave one."""
        for node_id, reference in list(self._beats.items()):
            try:
                self._ray.get(reference, timeout=0)
            except self._ray.exceptions.GetTimeoutError:
                continue
            except Exception:  # noqa: BLE001 - its process may be started again: call once more
                self._beats.pop(node_id, None)
            else:
                self._beats.pop(node_id, None)
                if node_id in self._watches:
                    self.last_heard_s[node_id] = now
        self._number += 1
        for node_id, watch in list(self._watches.items()):
            if node_id not in self._beats:
                self._beats[node_id] = watch.beat.remote(self._number, stop=self._is_stopping)

    def forget(self, node_id: str) -> None:
        """Expect nothing more of a node."""
        for known in (self._watches, self._beats, self.last_heard_s):
            known.pop(node_id, None)


@contextmanager
def connected(address: str, *, cells: int, markers: Mapping[str, float]) -> Iterator[Fleet]:
    """Join the cluster at `address`, or start one of this machine alone. Raises `HostError`."""
    # Without this Ray would take 127.0.0.1 for the machine's own address, and not meet itself.
    if not address or address.startswith(("127.", "localhost:")):
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ[_AUTH_MODE] = "token"
    if not address:
        os.environ[_TOKEN] = secrets.token_hex(32)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise HostError("Ray is not installed", hint=HINT_EXTRA) from error
    shared: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    try:
        if address:
            ray.init(address=address, **shared)
        else:
            ray.init(
                address="local",
                _node_ip_address="127.0.0.1",
                include_dashboard=False,
                num_cpus=1,
                resources={CELLS: cells, **markers},
                **shared,
            )
    except Exception as error:
        raise HostError(
            f"Ray can't be joined: {printable(str(error), max_chars=400)}",
            where=printable(address or "a cluster of this machine alone"),
            hint="see that `ray status --address HOST:PORT` works here, with the cluster's token",
        ) from error
    fleet = Fleet(ray)
    try:
        yield fleet
    finally:
        fleet.close()
        ray.shutdown()
