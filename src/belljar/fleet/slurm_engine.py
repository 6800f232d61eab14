"""Slurm as a fleet's engine: each function or unit is an `srun`, whose pipes carry frames.

`python -m belljar.fleet.slurm_engine` runs on the node, where standard input ends with the head.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from io import BytesIO
from tempfile import TemporaryFile
from typing import IO, Any, Final, cast

from belljar.dataclass import dataclass
from belljar.errors import HostError
from belljar.fleet import node as on_node
from belljar.fleet.archive import MAX_TASK_BYTES
from belljar.fleet.engine import BEAT_S, CALL_S, CELLS, HARDWARE, MEMORY, Engine
from belljar.policy.limits import Tier
from belljar.units import printable

MAX_FRAME_BYTES: Final = MAX_TASK_BYTES + (16 << 20)  # a task, and its words beside it
MAX_PIECE_BYTES: Final = 16 << 20  # of a unit: a piece is at most two of `PIECE_BYTES`
MAX_ANSWER_BYTES: Final = 1 << 20  # of a function: names and sentences
_MAX_SAID_BYTES: Final = 4096  # of the words that `srun` prints, the last ones say why it failed
JOB: Final = "belljar"
CALL_MIB: Final = 1024  # kept free for a function on a node: a check loads the task, and Inspect
# As `sinfo` calls nodes that take jobs; one that is drained or down would keep a unit waiting.
_USABLE: Final = frozenset({"idle", "mixed", "allocated", "completing"})
_HEAD: Final = struct.Struct(">cI")  # the kind (`b`: bytes, `j`: JSON) and length of what follows
# One byte a heartbeat. At the stream's end the node reads none, which means stop as well.
_GO_ON, _STOP = b"g", b"s"


def send(stream: IO[bytes], item: object) -> None:
    kind, content = (b"b", item) if isinstance(item, bytes) else (b"j", json.dumps(item).encode())
    stream.write(_HEAD.pack(kind, len(content)) + content)
    stream.flush()


def receive(stream: IO[bytes], max_bytes: int = MAX_FRAME_BYTES) -> Any:  # noqa: ANN401
    """Raises `EOFError` at the end, `ValueError` for other data."""
    head = stream.read(_HEAD.size)
    if not head:
        raise EOFError
    kind, size = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0)
    if kind not in {b"b", b"j"} or size > max_bytes:
        raise ValueError("the node sent something else than was agreed")
    content = stream.read(size)
    if len(content) < size:
        raise ValueError("the node's answer was cut off")
    return content if kind == b"b" else json.loads(content)


@dataclass(slots=True, eq=False)
class _Unit:
    """`node`: known when it runs."""

    process: subprocess.Popen[bytes]
    to: IO[bytes]
    back: IO[bytes]
    node: str = ""


class SlurmEngine(Engine):
    def __init__(self, partition: str) -> None:
        super().__init__()
        self._where = [f"--partition={partition}"] if partition else []
        self._units: list[_Unit] = []
        # Pieces of archives are megabytes: a slow head holds the nodes back, not its memory.
        self._items: queue.Queue[tuple[_Unit, Any]] = queue.Queue(maxsize=16)

    def offers(self, *, to_kill: bool = False) -> dict[str, Mapping[str, float]]:
        markers = dict.fromkeys([*(f"belljar_{tier}" for tier in Tier), HARDWARE], 1.0)
        found: dict[str, Mapping[str, float]] = {}
        words = ["sinfo", "--noheader", "--Node", "--format=%N|%T|%c|%m", *self._where]
        for line in _output(words):
            node, state, processors, memory_mib = line.split("|")
            if state in _USABLE or (to_kill and state == "draining"):
                # Two cells share a processor, as in `_size`.
                offer = {CELLS: 2.0 * int(processors), MEMORY: float(memory_mib)}
                found[node] = {**offer, **markers}
        return found

    def on_each(
        self, nodes: Sequence[str], call: partial[Any], *, within_s: float = CALL_S
    ) -> dict[str, Any]:
        running = _output(["squeue", "--me", "--noheader", f"--name={JOB}", "--format=%N|%A"])
        jobs = dict(line.split("|") for line in running)
        request = BytesIO()
        for item in (call.func.__name__, len(call.args), *call.args):
            send(request, item)
        content = request.getvalue()

        def ask(each: str) -> Any:  # noqa: ANN401 - any function's result
            words = [*self._where, *_size(1, CALL_MIB)]
            if each in jobs:
                words = [f"--jobid={jobs[each]}", "--overlap"]
            words.append(f"--nodelist={each}")
            try:
                return answer_of(_srun("belljar-call", words), content, within_s)
            except (HostError, OSError, ValueError, RecursionError) as error:
                return error

        with ThreadPoolExecutor(max_workers=32) as pool:
            return dict(zip(nodes, pool.map(ask, nodes), strict=True))

    def start(
        self, arguments: Sequence[Any], *, cells: int, memory_mib: int, nodes: Sequence[str]
    ) -> object:
        # `--nodelist` would ask for all of these nodes at once, so the others are excluded.
        others = ",".join(sorted(set(self.offers()) - {*nodes}))
        words = [*self._where, *_size(cells, memory_mib)]
        words += [f"--exclude={others}"] if others else []
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            _srun(JOB, words), stdin=pipe, stdout=pipe, stderr=None, start_new_session=True
        )
        unit = _Unit(process, cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout))
        with suppress(BrokenPipeError):  # its end says why
            for item in (on_node.run_unit.__name__, len(arguments), *arguments):
                send(unit.to, item)
        self._units.append(unit)
        threading.Thread(target=self._read, args=(unit,), daemon=True).start()
        return unit

    def _read(self, unit: _Unit) -> None:
        item: Any = {}
        while isinstance(item, dict | bytes):
            try:
                item = receive(unit.back, MAX_PIECE_BYTES)
                if not isinstance(item, dict | bytes):
                    item = ValueError("the node sent something else than was agreed")
            except EOFError:
                code = unit.process.wait()
                item = HostError(f"srun ended with exit code {code}") if code else None
            except (OSError, ValueError, RecursionError) as error:
                item = error
            if isinstance(item, dict) and isinstance(item.get("node"), str):
                unit.node = item["node"]
            if unit.node in self.last_heard_s:  # one that was given up stays lost
                self.last_heard_s[unit.node] = time.monotonic()
            if item != {}:  # an empty one only answers a heartbeat
                self._items.put((unit, item))
        self._units.remove(unit)

    def ready(self, units: Sequence[object], *, timeout_s: float) -> Iterator[tuple[object, Any]]:
        with suppress(queue.Empty):
            unit, item = self._items.get(timeout=timeout_s)
            if any(unit is each for each in units):  # else the head gave it up
                yield unit, item

    def cancel(self, unit: Any) -> None:  # noqa: ANN401 - what `start` returned
        """End a waiting job; a running one's guard sees its pipe closed."""
        with suppress(OSError):
            unit.to.close() if unit.node else unit.process.terminate()

    def _beat(self) -> None:
        while not self.closed.wait(BEAT_S):
            for unit in list(self._units):
                with suppress(OSError, ValueError):  # `cancel` closed the pipe
                    unit.to.write(_STOP if self.is_stopping else _GO_ON)
                    unit.to.flush()
            now, busy = time.monotonic(), {unit.node for unit in list(self._units)}
            for node, heard_s in list(self.last_heard_s.items()):
                # Unless a unit's thread noted an answer meanwhile; at first it lies START_S ahead.
                if node not in busy and self.last_heard_s.get(node) == heard_s:
                    self.last_heard_s[node] = max(now, heard_s)

    def close(self) -> None:
        self.closed.set()
        for unit in list(self._units):
            unit.process.terminate()


def _size(cells: int, memory_mib: int) -> list[str]:
    return [f"--cpus-per-task={-(-cells // 2)}", f"--mem={memory_mib}M"]


def _srun(name: str, words: Sequence[str]) -> list[str]:
    # The head's directory may not exist on a node, and frames must not wait in a buffer.
    one = ["--quiet", "--unbuffered", "--nodes=1", "--ntasks=1", "--chdir=/", f"--job-name={name}"]
    return ["srun", *one, *words, sys.executable, "-m", "belljar.fleet.slurm_engine"]


def answer_of(words: Sequence[str], content: bytes, within_s: float) -> Any:  # noqa: ANN401
    # What sends more than one answer is ended by its limit of file size.
    bounded = ["prlimit", f"--fsize={_HEAD.size + MAX_ANSWER_BYTES}:", *words]  # the soft one
    with TemporaryFile() as back, TemporaryFile() as said:
        why = "no answer"
        try:
            subprocess.run(
                bounded,
                input=content,
                stdout=back,
                stderr=said,
                start_new_session=True,  # Ctrl-C is the head's: it asks units to end itself
                timeout=within_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            why = "no answer in time"
        back.seek(0)
        said.seek(max(0, said.seek(0, os.SEEK_END) - _MAX_SAID_BYTES))
        try:
            return receive(back, MAX_ANSWER_BYTES)
        except EOFError:
            raise HostError(f"{why}: {printable(said.read())}") from None


def _output(words: Sequence[str]) -> list[str]:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        hint = "see that `sinfo` and `srun hostname` work on this machine"
        raise HostError(f"Slurm can't be asked: {printable(said)}", hint=hint) from error
    return done.stdout.splitlines()


def main() -> None:
    # Slurm gives a job the soft limits of its `srun`, whose files are bounded by `answer_of`.
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what else is printed is not a frame
    source = sys.stdin.buffer
    name = receive(source)
    arguments = [receive(source) for _ in range(receive(source))]
    # Only these functions can be called, whatever name was sent.
    if name != on_node.run_unit.__name__:
        send(out, {each.__name__: each for each in on_node.CALLED}[name](*arguments))
        return
    fleet, unit, lock = arguments[0], arguments[1], threading.Lock()

    def listen() -> None:
        watch, number, word = on_node.HeadWatch(fleet, lease=unit), 0, _GO_ON
        while word:
            word, number = source.read(1), number + 1
            watch.beat(number, stop=word != _GO_ON)
            with lock, suppress(OSError):  # the unit ends with its record, whoever hears of it
                send(out, {})

    with lock:
        send(out, {"node": os.environ["SLURMD_NODENAME"]})
    threading.Thread(target=listen, daemon=True).start()
    for item in on_node.run_unit(*arguments, lease=unit):
        with lock:  # `listen` writes into the same stream: frames must not mix
            send(out, item)
    os._exit(0)  # the thread that reads would hold the interpreter up


if __name__ == "__main__":
    main()
