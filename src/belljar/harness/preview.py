"""What each sample of a task would run in, before anything is started.

Decided by the same functions as the run itself; memoised by configuration, since the samples of a
task usually share one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from belljar.compose.interpolate import references
from belljar.differences import Difference, Kind, samples_named, sentences
from belljar.errors import BelljarError, HostError, PolicyError
from belljar.harness import config as configs
from belljar.harness.compat import TaskRefused
from belljar.harness.fidelity import TASK
from belljar.harness.operator import Operator
from belljar.plan.make import granted
from belljar.policy.limits import demanded_tier
from belljar.policy.stand_ins import CellStandIn

if TYPE_CHECKING:
    from belljar.image import Image
    from belljar.image.store import MissingImage
    from belljar.policy import LoadedPolicy, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSandbox:
    """What the sandbox of one sample comes to: a configuration, or the error that refuses it."""

    task: str
    sample: str
    metadata: Mapping[str, object]
    config: configs.BelljarConfig
    error: PolicyError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """One sample: the policy of its cell and how it differs from what was written, or its error.

    `policy` is that of the sample's configuration: metadata in `env` is not expanded in it. `kept`:
    what the cell has as it was written. `builds`: as `BelljarConfig.builds`. `replaced`: what its
    cells don't take from their images, as `where` and `key` of a `Difference`.
    """

    task: str
    sample: str
    policy: LoadedPolicy | None = None
    builds: str = ""
    differences: tuple[Difference, ...] = ()
    kept: tuple[Difference, ...] = ()
    replaced: frozenset[tuple[str, str]] = frozenset()
    error: BelljarError | None = None


def preview(sandboxes: Iterable[SampleSandbox], operator: Operator) -> Iterator[Preview]:
    """Each sample in turn; the error of one hides no other. Raises nothing."""
    known = _Known(operator)
    for each in sandboxes:
        found = Preview(task=each.task, sample=each.sample, error=each.error)
        if found.error is None:
            try:
                ours, policy, differences = known.within(each.config, each.metadata)
                configs.for_sample(policy, each.metadata)
                kept = tuple(_kept(ours, differences))
                found = replace(
                    found,
                    policy=policy,
                    differences=differences,
                    kept=kept,
                    replaced=_replaced(ours, policy.policy),
                    builds=ours.builds,
                )
            except BelljarError as error:
                found = replace(found, error=error)
        if isinstance(found.error, TaskRefused):
            found = replace(found, differences=found.error.differences)
        yield found


def _kept(ours: configs.BelljarConfig, differences: Iterable[Difference]) -> Iterator[Difference]:
    """What the task says that its cell has unchanged."""
    changed = {fact.key.partition(".")[0] for fact in differences if fact.where == TASK}
    asked = ours.asked()
    stated: dict[str, str] = {
        "policy": ours.policy,
        **{name: asked[name] for name in ("image", "user", "workdir") if name in asked},
    }
    if "env" in asked:
        stated["env"] = f"{len(asked['env'])} variable(s)"
    if "resources" in asked:
        stated["resources"] = ", ".join(asked["resources"])
    if isinstance(network := asked.get("network"), Mapping):
        stated["services"] = ", ".join(network["stand_ins"])
    if json.loads(ours.program or "{}"):
        stated["program"] = "what its compose file runs"
    for key, detail in stated.items():
        if detail and key not in changed and not (key == "services" and "network" in changed):
            yield Difference(kind=Kind.KEPT, where=TASK, key=key, detail=detail)


def _replaced(ours: configs.BelljarConfig, policy: Policy) -> frozenset[tuple[str, str]]:
    """What no cell of an image takes from it: the compose file or the policy says it."""
    others = policy.network.stand_ins.values() if policy.network is not None else ()
    program = json.loads(ours.program or "{}")
    cells: list[tuple[Policy | CellStandIn, object, object]] = [
        (policy, program.get("command"), program.get("arguments")),
        *((each, each.command, each.arguments) for each in others if isinstance(each, CellStandIn)),
    ]
    by_image: dict[str, list[set[str]]] = {}
    for cell, command, arguments in cells:
        keys = {name.upper() for name in ("user", "workdir") if getattr(cell, name) is not None}
        keys |= {"CMD"} if command is not None or arguments is not None else set()
        keys |= {"ENTRYPOINT"} if command is not None else set()
        by_image.setdefault(f"image {cell.image}", []).append(keys)
    return frozenset(
        (where, key) for where, found in by_image.items() for key in set.intersection(*found)
    )


_Within: TypeAlias = "tuple[configs.BelljarConfig, LoadedPolicy, tuple[Difference, ...]]"


class _Known:
    """The answers so far."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self._names: dict[str, frozenset[str]] = {}
        self._settled: dict[Any, configs.BelljarConfig | PolicyError] = {}
        self._within: dict[Any, _Within | BelljarError] = {}

    def within(self, config: configs.BelljarConfig, metadata: Mapping[str, object]) -> _Within:
        """The settled configuration, and as `config.within`. Raises `BelljarError`."""
        ours = self._settle(config, metadata)
        if ours not in self._within:
            try:
                self._within[ours] = (ours, *configs.within(ours, self.operator))
            except BelljarError as error:
                self._within[ours] = error
        found = self._within[ours]
        if isinstance(found, BelljarError):
            raise found
        return found

    def _settle(
        self, config: configs.BelljarConfig, metadata: Mapping[str, object]
    ) -> configs.BelljarConfig:
        if not config.compose:
            return config
        if config.compose not in self._names:
            self._names[config.compose] = frozenset(references(json.loads(config.compose)))
        names = self._names[config.compose]
        known = configs.metadata_variables(metadata)
        key = (config, tuple((name, known.get(name)) for name in sorted(names)))
        if key not in self._settled:
            try:
                self._settled[key] = configs.settled(config, metadata)
            except PolicyError as error:
                self._settled[key] = error
        found = self._settled[key]
        if isinstance(found, PolicyError):
            raise found
        return found


def missing_images(policies: Iterable[LoadedPolicy], home: Path) -> tuple[MissingImage, ...]:
    """The images of these cells and the other cells of their ranges that the store does
    not have.
    """
    from belljar.image import Store
    from belljar.image.store import missing_images as missing_in

    known = list(policies)
    users = {
        **{policy.policy.image: "the sample's own cell" for policy in known},
        **{
            each.image: f"service `{name}`"
            for policy in known
            if policy.policy.network is not None
            for name, each in policy.policy.network.stand_ins.items()
            if isinstance(each, CellStandIn)
        },
    }
    missing = missing_in(Store(home), (name for policy in known for name in policy.policy.images))
    return tuple(replace(each, used_by=users.get(each.image, "")) for each in missing)


def check_images(policies: Iterable[LoadedPolicy], home: Path) -> None:
    """Raises one `HostError` for all that are missing."""
    from belljar.image.store import refuse_missing

    refuse_missing(missing_images(policies, home))


def differences_of_images(policy: LoadedPolicy, home: Path) -> tuple[Difference, ...]:
    """What becomes of the configuration of each image of these cells that the store has."""
    from belljar.image import Store, image_differences

    store, found = Store(home), list[Difference]()
    for name in policy.policy.images:
        with contextlib.suppress(HostError):
            image = store.find(name)
            facts = (*image_differences(image.config), *_setuid(image, policy.policy))
            found += [replace(fact, where=f"image {name}") for fact in facts]
    return tuple(found)


def _setuid(image: Image, policy: Policy) -> Iterator[Difference]:
    """What becomes of its set-user-ID programs.

    A policy that asks for none gets none, as it says.
    """
    rights = policy.rights
    tier = demanded_tier(policy.risk, policy.tier)
    if rights is None or rights.setuid_programs == "off" or not image.setuid_programs:
        return
    if image.setuid_programs == "removed":
        detail = "its programs lost the bit when it was imported, so `su` and `sudo` gain nothing"
        hint = "import it again with --keep-setuid"
        yield Difference(kind=Kind.DROPPED, key="set-user-ID", detail=detail, hint=hint)
    elif granted(rights, tier).setuid_programs:
        detail = "its programs gain their owner's rights, those of the cell's root at most"
        yield Difference(kind=Kind.GRANTED, key="set-user-ID", detail=detail)
    else:
        detail = f"`su` and `sudo` gain nothing in a {tier.value} cell"
        yield Difference(
            kind=Kind.DROPPED, key="set-user-ID", detail=detail, hint="run it with --tier microvm"
        )


def with_images(
    previews: Iterable[Preview], look: Callable[[LoadedPolicy], tuple[Difference, ...]]
) -> list[Preview]:
    """The same, with what becomes of the configuration of their images, each looked at once."""
    known = cache(look)
    made: list[Preview] = []
    for each in previews:
        facts = known(each.policy) if each.policy is not None else ()
        kept = tuple(
            fact
            for fact in facts
            if fact.kind is Kind.KEPT and (fact.where, fact.key) not in each.replaced
        )
        more = tuple(fact for fact in facts if fact.kind is not Kind.KEPT)
        made.append(replace(each, kept=(*each.kept, *kept), differences=(*each.differences, *more)))
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Samples of one task with the same outcome."""

    first: Preview
    samples: tuple[str, ...]


def grouped(previews: Iterable[Preview]) -> list[Group]:
    """By outcome, in the order of the first sample of each. Environment is no outcome, and the same
    error of another file is the same outcome."""
    groups: dict[Any, list[Preview]] = {}
    for each in previews:
        policy, error = each.policy, each.error
        bare = policy.policy.model_copy(update={"env": {}}) if policy is not None else None
        why = (type(error), error.what, error.hint) if error is not None else None
        key = (each.task, bare, policy.base if policy is not None else None, each.differences, why)
        groups.setdefault(key, []).append(each)
    return [
        Group(first=same[0], samples=tuple(each.sample for each in same))
        for same in groups.values()
    ]


def summary(previews: Iterable[Preview]) -> list[str]:
    """What differs, as the few lines that `belljar run` shows first; none where nothing does."""
    by_fact: dict[tuple[str, str], list[str]] = {}
    count = 0
    for each in previews:
        count += 1
        for sentence in sentences(each.differences):
            by_fact.setdefault((each.task, sentence), []).append(each.sample)
    return [
        sentence if len(samples) == count else f"{samples_named(samples)}: {sentence}"
        for (_, sentence), samples in by_fact.items()
    ]
