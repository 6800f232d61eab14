"""A range's network in a policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from belljar.policy import fields as kinds
from belljar.policy.fields import MAX_NAMES, MAX_PORTS, AtError, HostNames, Ports, Strict, list_of
from belljar.policy.guarding import OWN_CELL
from belljar.policy.stand_ins import MODELS, AnyStandIn, NetworksField, TargetStandIn
from belljar.units import did_you_mean, listed, quoted

MAX_STAND_INS: Final = 64  # each has an address of the range, and a row of the plan
MAX_TARGETS: Final = 16  # each is a cell with its own memory and record
MAX_UPSTREAMS: Final = 32  # a reviewer reads each reason: a longer list would be waved through
RUN_BUDGETS: Final = 100  # a run's default budget, in samples' budgets
MIN_REASON_CHARS: Final = 10  # an upstream is real: a word alone tells a reviewer nothing
MAX_REASON_CHARS: Final = 500  # a sentence, not a page: a plan with many of them must stay readable
_REASON: Final = kinds.checked(
    "a reason",
    f"is not a reason: write one sentence of {MIN_REASON_CHARS} to {MAX_REASON_CHARS} characters",
    lambda text: MIN_REASON_CHARS <= len(text.strip()) <= MAX_REASON_CHARS and text.isprintable(),
    convert=str.strip,
)


class Upstream(Strict):
    """A real service, dialled within a budget."""

    host: Annotated[str, kinds.HOST]
    """Exactly this host name."""
    ports: Annotated[tuple[Annotated[int, kinds.PORT_NUMBER], ...], list_of(MAX_PORTS)]
    """TCP ports, as numbers: HTTP at 80, HTTPS at the others."""
    methods: Annotated[tuple[kinds.Method, ...], list_of(7)]
    """HTTP methods that are passed on."""
    budget: Annotated[int, kinds.size("1KiB", "100GiB")]
    """The most bytes of each sample, both directions; a dial costs 512."""
    run_budget: Annotated[int, kinds.size("1KiB", "100TiB")] | None = None
    """The most of all samples of a run. Default: 100 times `budget`."""
    reason: Annotated[str, _REASON]
    """Why a stand-in would not do, in a sentence."""

    @property
    def whole_run(self) -> int:
        return self.budget * RUN_BUDGETS if self.run_budget is None else self.run_budget

    @model_validator(mode="after")
    def _run_has_room_for_a_sample(self) -> Upstream:
        if self.whole_run < self.budget:
            raise AtError("must not be less than `budget`, the budget of one sample", "run_budget")
        return self


class Record(Strict):
    """The bounds of a range's record."""

    packets: Annotated[int, kinds.size("1MiB", "64GiB")] = kinds.amount("512MiB")
    """The packet record; a cell that sends more makes the sample void."""
    events: Annotated[int, kinds.size("16MiB", "1TiB")] = kinds.amount("1GiB")
    """The range's events and kept bodies at most; a further one ends the range."""


def _read_ids(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    if len(value) > MAX_STAND_INS:
        raise ValueError(f"{len(value)} stand-ins; at most {MAX_STAND_INS} are allowed")
    for name, body in value.items():
        try:
            kinds.NAME.read(name)  # without a colon, which upstreams' ids have (`upstream:HOST`)
        except ValueError as error:
            raise AtError(str(error), str(name)) from None
        if name == OWN_CELL:
            raise AtError(f"`{OWN_CELL}` is the name of the sample's own cell", name)
        kind = body.get("kind") if isinstance(body, Mapping) else getattr(body, "kind", None)
        if not isinstance(kind, str) or kind not in MODELS:
            why = f"is not one of {listed(MODELS)}{did_you_mean(str(kind), MODELS)}"
            if kind == "openapi":  # earlier versions had it; its nearest word is `openai`
                why = "`openapi` isn't there: write the API's routes as `http`, or use `python`"
            raise AtError(why, name, "kind")
    return value


class OwnCell(Strict):
    """How other cells reach the sample's own."""

    names: HostNames
    """Host names, exact."""
    ports: Ports
    """TCP ports that can be reached; `[all]`: every one."""
    networks: NetworksField = None


class Network(Strict):
    """Everything that can be reached, by name."""

    default: Literal["deny", "simulate"] = "deny"
    """What a name gets that no stand-in has: NXDOMAIN (deny), or a catch-all that answers plausibly
    and records (simulate)."""
    sink: bool = False
    """TCP to a port that nobody has is recorded and closed, not refused."""
    stand_ins: Annotated[
        Mapping[str, AnyStandIn],
        BeforeValidator(_read_ids, json_schema_input_type=dict[str, AnyStandIn]),
    ] = {}
    """Simulated endpoints, by name."""
    upstreams: Annotated[tuple[Upstream, ...], list_of(MAX_UPSTREAMS, min_count=0)] = ()
    """REAL services that the gateway may dial. Risk low and medium only."""
    own_cell: OwnCell | None = None
    """Where target cells reach the sample's own. Default: nowhere."""
    record: Record = Field(default=Record(), json_schema_extra={"default": {}})
    """How much of what passes is kept."""

    @model_validator(mode="after")
    def _each_once(self) -> Network:
        patterns = list(self.patterns())
        if len(patterns) > MAX_NAMES:
            raise AtError(f"{len(patterns)} names; at most {MAX_NAMES} are allowed", "stand_ins")
        seen: dict[str, str] = {}
        services = [name for name, item in self.stand_ins.items() if item.kind == "metadata"]
        if len(services) > 1:
            raise AtError("only one metadata service is allowed", "stand_ins", services[1], "kind")
        for pattern, owner, path in patterns:
            if pattern in seen:
                why = f"{quoted(pattern)} is already a name of {quoted(seen[pattern])}"
                raise AtError(why, *path)
            seen[pattern] = owner
            is_known = any(kinds.covers(pattern, name) for name in kinds.METADATA_NAMES)
            may_be_one = owner in {*services, *self.targets} or path[0] == "own_cell"
            if is_known and not may_be_one:
                raise AtError("is a metadata service's: use a stand-in of kind `metadata`", *path)
        # Target cells start in the order in which they are written: one can only await those
        # before it.
        before: set[str] = set()
        for name, item in self.targets.items():
            for index, awaited in enumerate(item.awaits or ()):
                if awaited not in before:
                    why = f"{quoted(awaited)} is not a target cell that is listed before this one"
                    raise AtError(why, "stand_ins", name, "awaits", index)
            before.add(name)
            if len(before) > MAX_TARGETS:
                raise AtError(f"at most {MAX_TARGETS} target cells are allowed", "stand_ins", name)
        return self

    @property
    def targets(self) -> dict[str, TargetStandIn]:
        items = self.stand_ins.items()
        return {name: item for name, item in items if isinstance(item, TargetStandIn)}

    @property
    def has_cells(self) -> bool:
        """A cell of the range has a network device."""
        cells = (self.own_cell, *self.targets.values())
        return any(cell is None or cell.networks != () for cell in cells)

    def patterns(self) -> Iterator[tuple[str, str, tuple[str | int, ...]]]:
        """Yield each host name, its owner, and its place."""
        for name, item in self.stand_ins.items():
            for at, pattern in enumerate(item.names):
                yield pattern, name, ("stand_ins", name, "names", at)
        for at, pattern in enumerate(self.own_cell.names if self.own_cell is not None else ()):
            yield pattern, "own_cell", ("own_cell", "names", at)
        for index, upstream in enumerate(self.upstreams):
            yield upstream.host, f"upstreams[{index}]", ("upstreams", index, "host")


def read_network(value: object) -> object:
    if value is None or isinstance(value, (Network, dict)) or value == "none":
        return None if value == "none" else value
    raise kinds.expected("`none` or a mapping with `stand_ins` and `default`", value)
