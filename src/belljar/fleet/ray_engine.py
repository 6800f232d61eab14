"""The one module that imports Ray, whose token lets everybody run code on every node."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from belljar.errors import HostError, PolicyError
from belljar.fleet.engine import BEAT_S, CALL_S, CELLS, MEMORY, Engine, check_private
from belljar.fleet.node import HeadWatch, run_unit
from belljar.units import printable

TRANSFER_S: Final = 60.0  # a piece of an archive that takes longer comes from a node that hangs
HINT_EXTRA: Final = "pip install 'belljar-sandbox[fleet]'"


class RayEngine(Engine):
    needs_token = True

    def __init__(self, address: str) -> None:
        """Join the cluster at `address` or RAY_ADDRESS."""
        super().__init__()
        if not (address := address or os.environ.get("RAY_ADDRESS", "")):
            hint = "give --fleet ray://HOST:PORT, or set RAY_ADDRESS"
            raise PolicyError("which cluster?", where="--fleet ray", hint=hint)
        check_private(address.rpartition(":")[0], where=f"--fleet ray://{address}")
        # Else Ray would take 127.0.0.1 for the machine's own address, and not meet itself.
        if address.startswith(("127.", "localhost:")):
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ["RAY_AUTH_MODE"] = "token"
        # No usage report leaves the host unless its operator asks for it.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as error:
            raise HostError("Ray is not installed", hint=HINT_EXTRA) from error
        # An older one takes RAY_AUTH_MODE for nothing.
        if tuple(map(int, ray.__version__.split(".")[:2])) < (2, 52):
            raise HostError(f"Ray {ray.__version__} knows no tokens", hint=HINT_EXTRA)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:
            what = f"Ray can't be joined: {printable(str(error), max_chars=400)}"
            hint = "see that `ray status --address HOST:PORT` works, with the cluster's token"
            raise HostError(what, where=printable(address), hint=hint) from error
        self._ray: Any = ray
        self._watches: dict[str, Any] = {}

    def close(self) -> None:
        self.closed.set()
        self._ray.shutdown()

    def offers(self, *, to_kill: bool = False) -> dict[str, Mapping[str, float]]:
        return offers_of(self._ray.nodes(), may_be_public=to_kill)

    def on_each(
        self, nodes: Sequence[str], call: partial[Any], *, within_s: float = CALL_S
    ) -> dict[str, Any]:
        remote = self._ray.remote(call.func)
        # Bytes are put once, and each node fetches them once.
        sent = [self._ray.put(one) if isinstance(one, bytes) else one for one in call.args]
        # `max_retries`: the head alone decides what is tried again.
        references = {
            each: remote.options(num_cpus=0, max_retries=0, label_selector=_on(each)).remote(*sent)
            for each in nodes
        }
        ends_s, found = time.monotonic() + within_s, {}
        for each, reference in references.items():
            try:
                # Not 0: a node that answered while others were waited for is still heard.
                left_s = max(0.1, ends_s - time.monotonic())
                found[each] = self._ray.get(reference, timeout=left_s)
            except Exception as error:  # noqa: BLE001 - whatever a node raises is its own
                found[each] = error
        return found

    def start(
        self, arguments: Sequence[Any], *, cells: int, memory_mib: int, nodes: Sequence[str]
    ) -> object:
        unit: object = (
            self._ray.remote(_run_unit)
            .options(
                num_cpus=0,
                max_retries=0,
                num_returns="streaming",
                resources={CELLS: cells, MEMORY: memory_mib},
                label_selector=_on(f"in({','.join(nodes)})"),
                # What the head has not taken yet waits on the node, not in memory.
                _generator_backpressure_num_objects=4,
            )
            .remote(*arguments)
        )
        return unit

    def ready(self, units: Sequence[object], *, timeout_s: float) -> Iterator[tuple[object, Any]]:
        if not units:
            time.sleep(timeout_s)
            return
        self._ray.wait([*units], timeout=timeout_s, fetch_local=False)  # until one has an item
        # Then each that has an item, so that a busy unit doesn't keep the others waiting.
        done, _ = self._ray.wait([*units], num_returns=len(units), timeout=0, fetch_local=False)
        for unit in done:
            item: Any
            try:
                item = self._ray.get(next(unit), timeout=TRANSFER_S)
            except StopIteration:
                item = None
            except Exception as error:  # noqa: BLE001 - of the node, or of Ray about it
                item = error
            yield unit, item

    def cancel(self, unit: Any) -> None:  # noqa: ANN401 - what `start` returned
        # It may have ended already.
        with suppress(Exception):
            self._ray.cancel(unit, force=True)

    def watch(self, fleet: str, nodes: Sequence[str]) -> None:
        actor = self._ray.remote(HeadWatch)
        for each in nodes:
            # It restarts without limit: units must not end because this small process did.
            options = actor.options(num_cpus=0, max_restarts=-1, label_selector=_on(each))
            self._watches[each] = options.remote(fleet)
        super().watch(fleet, nodes)

    def _beat(self) -> None:
        beats, number = dict[str, Any](), 0
        while not self.closed.wait(BEAT_S):
            for node_id, reference in list(beats.items()):
                try:
                    self._ray.get(reference, timeout=0)
                    if node_id in self.last_heard_s:
                        self.last_heard_s[node_id] = time.monotonic()
                except self._ray.exceptions.GetTimeoutError:
                    continue  # the last call is still unanswered: no second one is queued behind it
                except Exception:  # noqa: BLE001, S110 - its process may start again: call again
                    pass
                del beats[node_id]
            number += 1
            for node_id, watch in self._watches.items():
                if node_id in self.last_heard_s and node_id not in beats:
                    beats[node_id] = watch.beat.remote(number, stop=self.is_stopping)


def offers_of(
    nodes: Iterable[Mapping[str, Any]], *, may_be_public: bool
) -> dict[str, Mapping[str, float]]:
    """Raises `PolicyError` when any live node, with cells or without, has a public address."""
    alive = [each for each in nodes if each["Alive"]]
    for each in () if may_be_public else alive:  # halting cells must not fail because of an address
        name, address = each["NodeManagerHostname"], each["NodeManagerAddress"]
        check_private(address, where=f"node {name}, {address}")
    return {each["NodeID"]: each["Resources"] for each in alive if each["Resources"].get(CELLS)}


def _on(nodes: str) -> dict[str, str]:
    return {"ray.io/node-id": nodes}


def _run_unit(*arguments: Any) -> Iterator[dict[str, Any] | bytes]:  # noqa: ANN401 - `run_unit`'s
    import ray

    yield {"node": ray.get_runtime_context().get_node_id()}
    yield from run_unit(*arguments)
