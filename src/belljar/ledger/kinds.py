"""The shapes of event kinds' data (docs/events.md), and their checks.

A check raises `ValueError` without showing the value. Data may carry further fields. Not pydantic,
whose import would take a third of a short command's time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

from belljar.events import Kind

Check: TypeAlias = Callable[[Any], object]
# Beyond it, JSON's readers in other languages round.
MAX_COUNT: Final = 2**53 - 1


# By field; `name?`: it may be missing.
Shape: TypeAlias = Mapping[str, Check]


def check_shape(value: Any, shape: Shape, *, extra: bool = False) -> None:  # noqa: ANN401
    """Check an object; `extra`: further fields are allowed. Raises `ValueError`."""
    if not isinstance(value, dict):
        raise ValueError("an object is needed")
    for field, check in shape.items():
        name = field.removesuffix("?")
        if name in value:
            try:
                check(value[name])
            except ValueError as error:
                # The path of the field says enough: a cause for each level would not.
                raise ValueError(f"{name}: {error}") from None
        elif name == field:
            raise ValueError(f"{name}: is missing")
    if not extra and not value.keys() <= {field.removesuffix("?") for field in shape}:
        raise ValueError("it has fields that are not known")


def _that(is_good: Callable[[Any], object], what: str) -> Check:
    def check(value: object) -> None:
        if not is_good(value):
            raise ValueError(what)

    return check


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)  # true is no number


text: Final = _that(lambda value: isinstance(value, str), "text is needed")
count: Final = _that(
    lambda value: _is_int(value) and 0 <= value <= MAX_COUNT,
    "a whole number from 0 to 2^53 - 1 is needed",
)


def one_of(*words: str) -> Check:
    """One of these words."""
    allowed = frozenset(words)
    return _that(
        lambda value: isinstance(value, str) and value in allowed, "not a word that is known here"
    )


def exactly(number: int) -> Check:
    """This whole number."""
    return _that(lambda value: _is_int(value) and value == number, f"{number} is needed")


def matching(pattern: str) -> Check:
    """Text that this pattern matches whole."""
    compiled = re.compile(pattern)
    return _that(
        lambda value: isinstance(value, str) and compiled.fullmatch(value), "not of its form"
    )


_WALL_TIME: Final = matching("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{6}Z")


def wall_time(value: Any) -> None:  # noqa: ANN401 - as `Check`
    """A calendar time (RFC 3339, UTC, microseconds), as readers compute with it."""
    _WALL_TIME(value)
    datetime.fromisoformat(value)


# Lower case alone, so that a digest has one spelling.
HEX64: Final = matching("[0-9a-f]{64}")
# A reader refuses another version's lines: it would have to guess.
SCHEMA_VERSION: Final = 3


def maybe(check: Check) -> Check:
    """As `check`, or null."""
    return lambda value: None if value is None else check(value)


def items(check: Check, *, min_items: int = 0, max_items: int | None = None) -> Check:
    """A list (in events also a tuple) of such items."""

    def check_items(value: object) -> None:
        if not isinstance(value, list | tuple):
            raise ValueError("a list is needed")
        if len(value) < min_items or (max_items is not None and len(value) > max_items):
            raise ValueError("it has too few or too many items")
        for index, item in enumerate(value):
            try:
                check(item)
            except ValueError as error:
                raise ValueError(f"{index}: {error}") from None

    return check_items


def objects(shape: Shape, *, max_items: int | None = None, extra: bool = False) -> Check:
    """A list of objects of this shape."""
    return items(lambda value: check_shape(value, shape, extra=extra), max_items=max_items)


# By the names that the table below and `shape_of` give them.
TYPES: Final[dict[str, Check]] = {
    "text": text,
    "texts": items(text),
    "flag": _that(lambda value: isinstance(value, bool), "true or false is needed"),
    "count": count,
    "whole": _that(_is_int, "a whole number is needed"),
    "number": _that(lambda value: _is_int(value) or isinstance(value, float), "no number"),
    "object": _that(lambda value: isinstance(value, dict), "an object is needed"),
    "sha256": HEX64,
    "hex128": matching("[0-9a-f]{128}"),
    "run_id": matching("[0-9A-Za-z][0-9A-Za-z.-]{0,63}"),
    "version": exactly(SCHEMA_VERSION),
    "wall_time": wall_time,
    # Of a stream: milliseconds since the start, and how many bytes there were by then.
    "times": items(items(count, min_items=2, max_items=2)),
    # Of a terminal: milliseconds since the start, and its columns and rows from then on.
    "sizes": items(items(count, min_items=3, max_items=3)),
    "reaped": objects(
        {"cell_id": text, "kind": text, "removed": items(text), "remaining": items(text)},
        extra=True,
    ),
    "findings": objects({"name": text, "state": text, "how": text, "evidence": text}),
    "differences": objects({"kind": text, "key": text, "detail": text}, extra=True),
}


def shape_of(fields: str, **types: Check) -> Shape:
    """Return the shape that `fields` describe, as in the table below; `types`: more of them."""
    shape: dict[str, Check] = {}
    for name, _, type_name in (field.partition(":") for field in fields.split()):
        inner = type_name.removesuffix("-or-null")
        check = types.get(type_name) or TYPES.get(inner) or one_of(*inner.split("|"))
        shape[name] = maybe(check) if type_name not in types and inner != type_name else check
    return shape


# Each kind and its fields, `name:type`; `name?`: it may be missing; `a|b`: one of these words.
# In a range, `cell` is the cell's name there, empty when no cell has the address. A connection is
# TCP to the gateway; older runs have sums of its bytes, too.
_KINDS: Final = """
run.started             run_id:run_id kind:text argv:texts key:sha256 belljar:text libraries?:object
run.evaluated           interrupted:flag stopped:flag errors:texts
run.finished            outcome:completed|failed|interrupted exit_code:whole-or-null
host.reaped             count:count cells:reaped
air_gap.checked         phase:end|start air_gapped:flag findings:findings
air_gap.changed         reason:text
policy.refused          reason:text
cell.planned            policy_sha256:text tier:text emulated:flag layers:texts
cell.starting           runtime:text tree:text
cell.started            duration_ms:number
cell.cloning
cell.cloned             duration_ms:number
cell.renewed            done:texts
cell.taken              waited_ms?:number age_ms?:number
cell.reverting          verify:flag
cell.reverted           from:text to:text from_pool:flag duration_ms:number
cell.revert_verified    from:text planted:texts found:texts not_checked:texts
cell.snapshotting       snapshot:text name:text
cell.snapshot           snapshot:text name:text key:text state:files|machine digest:sha256
                        bytes:count duration_ms:number
cell.forked             snapshot:text from:text kept_decoys?:texts
snapshot.deleted        snapshot:text clean:flag
cell.checking           phase:baseline|call|end
cell.checked            phase:baseline|call|end duration_ms:number op:count cause:text
cell.failed             reason:text error:text
cell.destroying         reason:text
cell.destroyed          duration_ms:number clean:flag survivors:texts checked?:texts
                        not_checked?:texts
template.building       key:text
template.built          key:text duration_ms:number
template.rejected       key:text reason:text
exec.started            op:count argv:texts cwd:text user:text env_names:texts stdin:flag
                        timeout_s:number-or-null cols?:count rows?:count
exec.output             op:count stream:stderr|stdout bytes:count
exec.input              op:count bytes:count
exec.signal             op:count signal:text scope:main|tree
exec.completed          op:count stdin_times?:times stdout_times?:times stderr_times?:times
                        size_times?:sizes duration_ms:number status:exited|signalled code:whole
                        stdout_bytes:count stderr_bytes:count stdout_dropped_bytes:count
                        stderr_dropped_bytes:count
exec.failed             op:count reason:text stdin_times?:times stdout_times?:times
                        stderr_times?:times size_times?:sizes
exec.timed_out          op:count stdin_times?:times stdout_times?:times stderr_times?:times
                        size_times?:sizes timeout_s:number-or-null
connect.started         op:count target:tcp|unix name:text user:text
connect.completed       op:count sent_bytes:count received_bytes:count unread_bytes?:count
connect.failed          op:count reason:text
model.request.started   request:count path:text bytes:count sha256:sha256
model.request.completed request:count path:text bytes:count sha256:sha256 duration_ms:number
                        status:count prompt_tokens:count-or-null completion_tokens:count-or-null
model.request.failed    request:count path:text bytes:count sha256:sha256 reason:text status:count
file.write.started      op:count bytes:count path:text
file.write.completed    op:count
file.write.failed       op:count reason:text
task.files.copied       key:text source:text target:text files:whole bytes:whole sha256:text
file.read.started       op:count path:text
file.read.completed     op:count bytes:count
file.read.failed        op:count reason:text
files.started           op:count action:download|list|remove|stat|upload path:text
files.completed         op:count action:download|list|remove|stat|upload entries:count
files.failed            op:count action:download|list|remove|stat|upload reason:text
cell.metrics            op:count cpu_s:number-or-null memory_bytes:count-or-null
                        memory_limit_bytes:count disk_bytes:count-or-null disk_limit_bytes:count
                        processes:count-or-null processes_limit:count uptime_s:number
                        guest_reported:texts
limit.hit               limit:text
probe.started           which:text phase:text user:text
probe.completed         which:text phase:text user:text duration_ms:number
                        verdict:breached|contained|void probes:count digest:sha256 problem:text
protocol.violation      reason:text
sample.started          sample:text differences?:differences
sample.running          sample:text
sample.finished         sample:text
model.called            model:text address:text bytes:count guarded:flag
range.opening           range:text
range.opened            range:text duration_ms:number
range.failed            range:text reason:text error:text
range.destroying        range:text reason:text
range.destroyed         range:text duration_ms:number clean:flag survivors:texts checked?:texts
                        not_checked?:texts sent_bytes?:object
network.flow            cell:text reason:text verdict:allowed|dropped|refused protocol:text
                        address:text port:count-or-null bytes:count
network.dns             cell:text name:text type:text answer:text longest_label:count entropy:number
                        header?:text edns?:text
network.tls             cell:text reason:text verdict:allowed|dropped|refused sni:text-or-null
                        address:text port:count
network.http            cell:text reason:text verdict:allowed|dropped|refused exchange:count
                        stand_in:text method:text url:text bytes:count
network.http.answered   cell:text duration_ms:number exchange:count stand_in:text status:count
                        bytes:count
network.websocket       cell:text exchange:count stand_in:text direction:received|sent bytes:count
network.stream          cell:text reason:text verdict:allowed|dropped|refused stand_in:text
                        address:text port:count bytes:count
network.connection      cell:text reason?:text connection:count address:text port:count
                        source_port:count phase:closed|open received_bytes?:count eof?:flag
network.attempt         stand_in:text what:text
network.upstream        host:text port:count-or-null address:text
                        verdict:cut|dialled|failed|looked_up|refused reason:text problem:text
decoy.placed            decoy:text kind:text place:text values:object
decoy.failed            decoy:text reason:text kind:text place:text
decoy.touched           decoy:text operation:connect|open|read
decoy.taken             decoy:text value:text operation:text evidence:count
decoy.used              decoy:text value:text operation:text evidence:count
decoy.sent              decoy:text value:text operation:text evidence:count
decoy.carried           decoy:text value:text from_cell:text evidence:count lineage?:sent|taken|used
sensor.started          sensor:text decoys:texts
sensor.failed           sensor:text decoys:texts reason:text
guard.hit               place:model|output|range|upstream channel:text evidence?:count class:text
                        action:block|flag|redact|stop digest:sha256 start:count end:count
                        decoding:texts value?:text
guard.unscanned         place:model|output|range|upstream channel:text evidence?:count reason:text
                        bytes:count
kill.triggered          scope:all|cells|run|sample reason:text rule:text evidence?:count
kill.completed          scope:all|cells|run|sample duration_ms:number cells:texts failed:texts
kill.tested             duration_ms:number ok:flag
fleet.planned           task:text samples:texts epochs:count code:sha256
fleet.node              node:text state:lost|refused|taken key:text reason:text
fleet.image.sent        node:text image:text digest:sha256 bytes:count
fleet.unit.placed       unit:count attempt:count node:text samples:texts
fleet.unit.finished     unit:count attempt:count node:text samples:texts run_id:run_id key:sha256
                        root:sha256 archive:sha256 bytes:count verdict:breached|contained|void
fleet.unit.failed       unit:count attempt:count node:text samples:texts reason:text archive?:sha256
                        is_bad?:flag
control.planned         controls:texts policies:texts
control.started         control:text
control.completed       control:text ok:flag missing:texts unexpected:texts
"""


# A line that begins with blanks goes on with the kind before.
_ROWS: Final = (line.partition(" ") for line in re.sub(r"\n +", " ", _KINDS.strip()).splitlines())
FIELDS: Final[Mapping[Kind, str]] = {Kind(name): more for name, _, more in _ROWS}
DATA: Final[Mapping[Kind, Shape]] = {kind: shape_of(text) for kind, text in FIELDS.items()}
