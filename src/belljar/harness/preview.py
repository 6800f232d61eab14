"""Each sample's sandbox, before anything is started, and `belljar check`.

Uses the run's own functions. Loads a task's Python file, but starts and fetches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from belljar.compose.document import is_compose_name, is_dockerfile_name, read_document
from belljar.compose.interpolate import references
from belljar.dataclass import dataclass, json_of, replace
from belljar.differences import Difference, samples_named, sentences
from belljar.errors import BelljarError, HostError, PolicyError
from belljar.harness import config as configs
from belljar.harness.compat import TaskRefused
from belljar.harness.config import (
    BelljarConfig,
    SampleSandbox,
    beside_policy,
    named_document,
    of_compose,
    settled,
)
from belljar.harness.operator import Operator, OperatorOptions, read_operator
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.compose.data import ServiceBuild
    from belljar.host.model import HostFacts
    from belljar.image.store import MissingImage
    from belljar.plan.model import ImageFacts, Plan
    from belljar.policy.loaded import LoadedPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """One sample: its cell's policy and differences, or its error.

    Metadata in `env` is not expanded. `builds`: as in `BelljarConfig`.
    """

    task: str
    sample: str
    policy: LoadedPolicy | None = None
    builds: tuple[ServiceBuild, ...] = ()
    differences: tuple[Difference, ...] = ()
    error: BelljarError | None = None


def preview(sandboxes: Iterable[SampleSandbox], operator: Operator) -> Iterator[Preview]:
    """Each sample in turn. Raises nothing."""
    within = _within_once(operator)
    for each in sandboxes:
        found = Preview(task=each.task, sample=each.sample, error=each.error)
        if found.error is None:
            try:
                made = within(each.config, each.metadata)
                configs.for_sample(made.policy, each.metadata)
                found = replace(
                    found, policy=made.policy, differences=made.differences, builds=made.builds
                )
            except BelljarError as error:
                found = replace(found, error=error)
        if isinstance(found.error, TaskRefused):
            found = replace(found, differences=found.error.differences)
        yield found


def _within_once(
    operator: Operator,
) -> Callable[[BelljarConfig, Mapping[str, object]], configs.SamplePolicy]:
    """As `configs.within`, once for all samples whose metadata makes it the same."""
    names_in = cache(lambda config: sorted(references(config.compose or {})))
    known: dict[object, configs.SamplePolicy | BelljarError] = {}

    def within(config: BelljarConfig, metadata: Mapping[str, object]) -> configs.SamplePolicy:
        variables = configs.metadata_variables(metadata)
        key = (config, *map(variables.get, names_in(config)))
        if key not in known:
            try:
                known[key] = configs.within(settled(config, metadata), operator)
            except BelljarError as error:
                known[key] = error
        found = known[key]
        if isinstance(found, BelljarError):
            raise found
        return found

    return within


def with_images(
    previews: Iterable[Preview], look: Callable[[LoadedPolicy], tuple[Difference, ...]]
) -> list[Preview]:
    """Add the images' differences, each image read once."""
    known = cache(look)
    return [
        each
        if each.policy is None
        else replace(each, differences=(*each.differences, *known(each.policy)))
        for each in previews
    ]


def grouped(previews: Iterable[Preview]) -> list[list[Preview]]:
    """Samples of one task with the same outcome, in order; environment does not count."""
    groups: dict[Any, list[Preview]] = {}
    for each in previews:
        policy, error = each.policy, each.error
        bare = policy.policy.model_copy(update={"env": {}}) if policy is not None else None
        why = (type(error), error.what, error.hint) if error is not None else None
        key = (each.task, bare, policy.base if policy is not None else None, each.differences, why)
        groups.setdefault(key, []).append(each)
    return list(groups.values())


def summary(previews: Iterable[Preview]) -> list[str]:
    """The differences, as `belljar run` shows them first."""
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


# Apart from a refusal's 4: what is missing can be got, and then the same files run.
MISSING_CODE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The outcome of `samples` that have the same as `first`.

    `missing`: images that the store does not have, each with the command that gets it. `plan`: what
    a cell would be here. `error`: the author's to fix. `lacking`: what this host can't do.
    """

    first: Preview
    samples: tuple[str, ...]
    missing: tuple[MissingImage, ...] = ()
    plan: Plan | None = None
    error: BelljarError | None = None
    lacking: HostError | None = None

    @property
    def exit_code(self) -> int:
        """0: runs; 3: this host lacks something; 4: refused."""
        if self.error is not None:
            return self.error.exit_code
        return MISSING_CODE if self.missing or self.lacking is not None else 0

    @property
    def outcome(self) -> str:
        """In one word: `refused`, `missing`, `differs` or `runs`."""
        if self.error is not None:
            return "refused"
        if self.exit_code:
            return "missing"
        return "differs" if self.first.differences else "runs"


def exit_code(outlooks: Iterable[Outlook]) -> int:
    """The worst: the author's errors before the host's."""
    return max((each.exit_code for each in outlooks), default=0)


def kind_of(target: str) -> str:
    """`policy`, `compose` or `task`, by name."""
    from belljar.policy.loaded import PRESETS

    suffix = Path(target).suffix
    if (is_dockerfile_name(target) and suffix != ".py") or is_compose_name(target):
        return "compose"  # a Dockerfile is one service that is built, as for Inspect
    return "policy" if target in PRESETS or suffix in {".yaml", ".yml"} else "task"


def check_policy(target: str, options: OperatorOptions) -> list[Preview]:
    """A policy, as `--policy` of an empty task."""
    alone: OperatorOptions = {**options, "run_policy": target}
    return _one(BelljarConfig(), read_operator(**alone), target)


def check_compose(target: str, options: OperatorOptions) -> list[Preview]:
    """A compose file or a Dockerfile; placeholders replace metadata."""
    path = Path(target).absolute()
    operator = read_operator(**options)
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
        return _one(config, operator, target)
    except PolicyError as error:
        return _one(BelljarConfig(), operator, target, error)


def _one(
    config: BelljarConfig, operator: Operator, target: str, error: PolicyError | None = None
) -> list[Preview]:
    made = SampleSandbox(task=target, sample="", metadata={}, config=config, error=error)
    return list(preview([made], operator))


# Replaces unknown metadata of a sample.
PLACEHOLDER: Final = "sample-metadata"


def outlooks(
    previews: Sequence[Preview],
    home: Path,
    facts: Callable[[], HostFacts],
    image_of: Callable[[str], ImageFacts | None],
) -> list[Outlook]:
    """Each group with its images and its plan; facts of this host are read when needed."""
    from belljar.harness.source import differences_of_images
    from belljar.network.stand_ins.author import check_stand_ins
    from belljar.plan.make import make_plan

    facts = cache(facts)
    whole = with_images(previews, lambda policy: differences_of_images(policy, home))
    found: list[Outlook] = []
    for same in grouped(whole):
        first, plan = same[0], None
        error, lacking, loaded = first.error, None, first.policy
        if error is None and loaded is not None:
            try:
                check_stand_ins(loaded)
                image = image_of(loaded.policy.image)
                plan = make_plan(loaded.policy, facts(), image, base=loaded.base)
            except HostError as host_lacks:
                lacking = host_lacks
            except BelljarError as refused:
                error = refused
        found.append(
            Outlook(
                first=first,
                samples=tuple(each.sample for each in same if each.sample),
                missing=_missing(first, home),
                plan=plan,
                error=error or (None if loaded else PolicyError("nothing is known of it")),
                lacking=lacking,
            )
        )
    return found


def _missing(first: Preview, home: Path) -> tuple[MissingImage, ...]:
    from belljar.harness.source import command_of, missing_images

    if first.policy is None or first.error is not None:
        return ()
    builds = {each.image: each for each in first.builds}
    return tuple(
        replace(each, command=command_of(builds[each.image])) if each.image in builds else each
        for each in missing_images([first.policy], home)
        # Its name is known only with a sample's metadata.
        if PLACEHOLDER not in each.image
    )


def all_missing(found: Iterable[Outlook]) -> list[MissingImage]:
    """Each missing image once, in group order."""
    return list({each.image: each for outlook in found for each in outlook.missing}.values())


def as_json(target: str, kind: str, found: Sequence[Outlook]) -> dict[str, Any]:
    """For `--json`; documented in docs/check.md."""
    groups: list[dict[str, Any]] = []
    for each in found:
        first = each.first
        absent = {missing.image for missing in each.missing}
        images = first.policy.policy.images if first.policy is not None else ()
        groups.append(
            {
                "task": first.task if each.samples else "",
                "samples": list(each.samples),
                "outcome": each.outcome,
                "differences": [fact.data() for fact in first.differences],
                "error": _error_json(each.error),
                "images": [{"image": name, "present": name not in absent} for name in images],
                "plan": None if each.plan is None else _plan_json(each.plan),
                "lacking": _error_json(each.lacking),
            }
        )
    return {
        "target": target,
        "kind": kind,
        "exit_code": exit_code(found),
        "groups": groups,
        "missing_images": [
            {"image": each.image, "what": each.why.what, "command": each.command}
            for each in all_missing(found)
        ],
    }


def _error_json(error: BelljarError | None) -> dict[str, str] | None:
    if error is None:
        return None
    texts = {"what": error.what, "where": error.where, "hint": error.hint}
    return {name: printable(text, max_chars=2000) for name, text in texts.items()}


def _plan_json(plan: Plan) -> dict[str, Any]:
    network = plan.policy.network
    limits = ("cpus", "memory_bytes", "disk_bytes", "processes", "lifetime_s")
    own = ("risk", "tier", "emulated", "user", "workdir", "warnings")
    return {
        **{name: json_of(getattr(plan, name)) for name in own},
        **{name: getattr(plan.limits, name) for name in limits},
        "services": list(network.stand_ins) if network is not None else [],
        "upstreams": [each.host for each in network.upstreams] if network is not None else [],
    }
