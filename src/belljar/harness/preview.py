"""Each sample's sandbox before anything is started, and `belljar check`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from belljar.compose.document import is_compose_name, is_dockerfile_name, read_document
from belljar.compose.interpolate import references
from belljar.dataclass import dataclass, replace
from belljar.differences import Difference, DifferenceKind, samples_named, sentences
from belljar.errors import BelljarError, HostError, PolicyError
from belljar.harness.config import (
    BelljarConfig,
    Preview,
    TaskRefused,
    beside_policy,
    metadata_variables,
    named_document,
    of_compose,
    settled,
)
from belljar.harness.operator import Operator, SamplePolicy, for_sample, within
from belljar.image.store import Image, MissingImage, Store, missing_images
from belljar.plan.make import granted, make_plan
from belljar.policy.limits import demanded_tier
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.host.model import HostFacts
    from belljar.plan.model import ImageFacts, Plan
    from belljar.policy.loaded import LoadedPolicy
    from belljar.policy.model import Policy


def preview(sandboxes: Iterable[Preview], operator: Operator) -> Iterator[Preview]:
    names_in = cache(lambda config: sorted(references(config.compose or {})))
    known: dict[object, SamplePolicy | BelljarError] = {}
    for each in sandboxes:
        variables = metadata_variables(each.metadata)
        key = (each.asked, *map(variables.get, names_in(each.asked)))
        made = each.error or known.get(key)
        try:
            if made is None:
                config = settled(each.asked, each.metadata, where=each.where)
                made = known[key] = within(config, operator)
            if isinstance(made, SamplePolicy):
                for_sample(made.policy, each.metadata)
        except BelljarError as error:
            if made is None:
                known[key] = error
            made = error
        if isinstance(made, BelljarError):
            differences = made.differences if isinstance(made, TaskRefused) else ()
            yield replace(each, error=made, differences=differences)
        else:
            asked, policy = made.asked, made.policy
            yield replace(each, asked=asked, policy=policy, differences=made.differences)


def with_images(
    previews: Iterable[Preview], look: Callable[[LoadedPolicy], tuple[Difference, ...]]
) -> list[Preview]:
    known = cache(lambda policy: look(policy) if policy is not None else ())
    return [
        replace(each, differences=(*each.differences, *known(each.policy))) for each in previews
    ]


def image_differences(store: Store, policy: LoadedPolicy) -> tuple[Difference, ...]:
    found = list[Difference]()
    for name in policy.policy.images:
        with suppress(HostError):  # a missing image has no configuration, and is refused
            rows = _image_rows(store.find(name), policy.policy)
            found += [
                Difference(kind=kind, where=f"image {name}", key=key, detail=detail, hint=hint)
                for kind, key, detail, hint in rows
            ]
    return tuple(found)


def _image_rows(image: Image, policy: Policy) -> Iterator[tuple[DifferenceKind, str, str, str]]:
    if image.healthcheck:
        detail = "it is asked, at least once a second, until healthy for the first time"
        yield DifferenceKind.CHANGED, "HEALTHCHECK", detail, ""
    if image.stop_signal:
        detail = "a cell is destroyed at once: no signal is sent to its program first"
        yield DifferenceKind.DROPPED, "STOPSIGNAL", detail, ""
    rights, tier = policy.rights, demanded_tier(policy.risk, policy.tier)
    if rights is None or rights.setuid_programs == "off" or not image.setuid_programs:
        return
    if image.setuid_programs == "removed":
        detail = "its programs lost the bit at import: `su` and `sudo` gain nothing"
        yield DifferenceKind.DROPPED, "set-user-ID", detail, "import it again with --keep-setuid"
    elif granted(rights, tier).setuid_programs:
        detail = "its programs gain their owner's rights, at most the cell's root's"
        yield DifferenceKind.GRANTED, "set-user-ID", detail, ""
    else:
        detail = f"`su` and `sudo` gain nothing in a {tier.value} cell"
        yield DifferenceKind.DROPPED, "set-user-ID", detail, "run it with --tier microvm"


def grouped(previews: Iterable[Preview]) -> list[list[Preview]]:
    groups: dict[Any, list[Preview]] = {}
    for each in previews:
        policy, error = each.policy, each.error
        bare = policy.policy.model_copy(update={"env": {}}) if policy is not None else None
        why = (type(error), error.what, error.hint) if error is not None else None
        key = (each.task, bare, policy.base if policy is not None else None, each.differences, why)
        groups.setdefault(key, []).append(each)
    return list(groups.values())


def summary(previews: Sequence[Preview]) -> list[str]:
    by_fact: dict[tuple[str, str], list[str]] = {}
    for each in previews:
        for sentence in sentences(each.differences):
            by_fact.setdefault((each.task, sentence), []).append(each.sample)
    return [
        sentence if len(samples) == len(previews) else f"{samples_named(samples)}: {sentence}"
        for (_, sentence), samples in by_fact.items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    first: Preview
    samples: tuple[str, ...]
    missing: tuple[MissingImage, ...] = ()
    plan: Plan | None = None

    @property
    def exit_code(self) -> int:
        if self.first.error is not None:
            return self.first.error.exit_code
        return HostError.exit_code if self.missing else 0

    @property
    def outcome(self) -> str:
        if self.exit_code:
            return "missing" if self.exit_code == HostError.exit_code else "refused"
        return "differs" if self.first.differences else "runs"


def kind_of(target: str) -> str:
    from belljar.policy.loaded import PRESETS

    suffix = Path(target).suffix
    if (is_dockerfile_name(target) and suffix != ".py") or is_compose_name(target):
        return "compose"  # a Dockerfile is one service that is built, as for Inspect
    return "policy" if target in PRESETS or suffix in {".yaml", ".yml"} else "task"


def check_policy(target: str, operator: Operator) -> list[Preview]:
    return list(preview([Preview(target)], replace(operator, run_policy=target)))


def check_compose(target: str, operator: Operator) -> list[Preview]:
    path, error = Path(target).absolute(), None
    config = BelljarConfig()
    try:
        if not path.is_file():
            raise PolicyError("no such file", where=printable(target))
        document = named_document(path) or read_document(path)
        config = of_compose(document, beside_policy(path.parent), where=target)
        try:
            config = settled(config, {})
        except PolicyError:  # it needs a sample's metadata
            names = references(config.compose or {})
            prefix = len("SAMPLE_METADATA_")
            config = settled(config, {name[prefix:]: PLACEHOLDER for name in names})
    except PolicyError as refused:
        error = refused
    return list(preview([Preview(target, asked=config, error=error)], operator))


PLACEHOLDER: Final = "sample-metadata"  # replaces unknown metadata of a sample


def outlooks(
    previews: Sequence[Preview],
    home: Path,
    facts: Callable[[], HostFacts],
    image_of: Callable[[str], ImageFacts | None],
) -> list[Outlook]:
    from belljar.image.missing import command_of
    from belljar.network.stand_ins.author import check_stand_ins

    facts, store = cache(facts), Store(home)
    whole = with_images(previews, partial(image_differences, store))
    found: list[Outlook] = []
    for same in grouped(whole):
        missing: list[MissingImage] = []
        first, plan = same[0], None
        if (loaded := first.policy) is not None:
            builds = {each.image: each for each in first.asked.builds}
            for each in missing_images(store, loaded.policy.images):
                if each.image in builds:
                    missing.append(each._replace(command=command_of(builds[each.image])))
                elif PLACEHOLDER not in each.image:  # else only a sample's metadata names it
                    missing.append(each)
            try:
                check_stand_ins(loaded)
                image = image_of(loaded.policy.image)
                plan = make_plan(loaded.policy, facts(), image, base=loaded.base)
            except BelljarError as error:
                first = replace(first, error=error)
        samples = tuple(each.sample for each in same if each.sample)
        found.append(Outlook(first=first, samples=samples, missing=tuple(missing), plan=plan))
    return found


def all_missing(found: Iterable[Outlook]) -> list[MissingImage]:
    return list({each.image: each for outlook in found for each in outlook.missing}.values())


def as_json(target: str, kind: str, found: Sequence[Outlook]) -> dict[str, Any]:
    groups: list[dict[str, Any]] = []
    for each in found:
        first, absent = each.first, {missing.image for missing in each.missing}
        images = first.policy.policy.images if first.policy is not None else ()
        groups.append(
            {
                "task": first.task if each.samples else "",
                "samples": list(each.samples),
                "outcome": each.outcome,
                "differences": [fact.data() for fact in first.differences],
                "error": first.error
                and {
                    name: printable(getattr(first.error, name), max_chars=2000)
                    for name in ("what", "where", "hint")
                },
                "images": [{"image": name, "present": name not in absent} for name in images],
            }
        )
    return {
        "target": target,
        "kind": kind,
        "exit_code": max((each.exit_code for each in found), default=0),
        "groups": groups,
        "missing_images": [
            {"image": each.image, "what": each.why.what, "command": each.command}
            for each in all_missing(found)
        ],
    }
