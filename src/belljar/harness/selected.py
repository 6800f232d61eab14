"""A task's selected samples, and the words that make another process run some of them."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from belljar.dataclass import dataclass
from belljar.errors import HostError, PolicyError
from belljar.harness.options import InspectOptions, RunRequest, Selection, read_selection
from belljar.host.cgroups import cell_bytes
from belljar.policy.limits import Tier, demanded_tier, needs_hardware
from belljar.policy.stand_ins import TargetStandIn
from belljar.units import printable

if TYPE_CHECKING:
    from inspect_ai import Task

    from belljar.harness.preview import Preview
    from belljar.policy.loaded import PresetPolicy
    from belljar.policy.model import Policy

# Options by which the samples are chosen: a unit's words name its own.
_CHOSEN: Final = ("--limit", "--sample-id", "--sample-shuffle")
# Inspect takes an id for a pattern: one with these signs has to match itself alone.
_GLOB: Final = re.compile(r"([*?[])")
# An id without a sign that `--sample-id` reads.
_PLAIN: Final = re.compile(r"[^\s,:*?\[]+")
# Options of Inspect that several processes can't share, or that are read from a file there.
_NOT_SHARED: Final = ("acp_server", "generate_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedTask:
    """One task, what of it was selected, and what its cells demand.

    `root`: the directory of its file, which `words` are relative to; None for a task of a package.
    `words`: the task and Inspect's options, without the selection. `check_words`: for `check`.
    `policies`: digests. `memory_mib`: of a sample's cells, each fully used. `limits`: the
    operator's, of samples and cells at a time.
    """

    name: str
    root: Path | None
    words: tuple[str, ...]
    check_words: tuple[str, ...]
    samples: tuple[str, ...]
    epochs: int
    tier: Tier
    policies: tuple[str, ...] = ()
    images: frozenset[str] = frozenset()
    time_limit_s: float | None = None
    retries: int = 0
    memory_mib: int = 1216
    needs_hardware: bool = False
    limits: tuple[int, ...] = ()

    def at_once(self, cells: int) -> int:
        """How many samples a unit may run at a time: `cells`, or the operator's own limit."""
        return min(cells, *self.limits) if self.limits else cells

    def unit_words(self, samples: Iterable[str], *, cells: int) -> list[str]:
        """The words that run these samples, so many at a time."""
        several = ["--max-samples", str(cells), "--max-sandboxes", str(cells)]
        return [*self.words, "--sample-id", ",".join(map(pattern_of, samples)), *several]


def pattern_of(sample: str) -> str:
    """The pattern that matches this id and nothing else."""
    return _GLOB.sub(r"[\1]", sample)


def select_task(
    request: RunRequest, loaded: tuple[InspectOptions, list[Task], list[Preview]]
) -> SelectedTask:
    """Select the samples of the one task that `load_only` loaded for the request.

    Raises a sample's own error; `PolicyError` for what can't be run in parts.
    """
    options, tasks, previews = loaded
    for each in previews:
        if each.error is not None and not isinstance(each.error, HostError):
            raise each.error  # what a node lacks, each node says itself
    selection = read_selection(options)
    spec, task = _only(options, tasks)
    _check_shared(options, selection, task)
    samples = _samples(task, selection)
    path, at, name = spec.partition("@")
    root = Path(path).absolute().parent if Path(path).is_file() else None
    # One sample of each kind: a node checks no more.
    kinds = {each.policy: each.sample for each in previews if each.policy is not None}
    if not samples or not kinds:
        raise PolicyError("no sample is selected", where=printable(task.name))
    sent = f"{Path(path).name}{at}{name}" if root else spec
    own = [
        *(["--policy", request.policy] if request.policy else []),
        *(["--override"] if request.override else []),
        *(["--allow-upstreams"] if request.allow_upstreams else []),
        *(["--tier", request.tier] if request.tier else []),
    ]
    rest = list(request.inspect_args)
    rest.remove(spec)
    rest = _without(rest)
    _check_files([*own, os.environ.get("BELLJAR_POLICY", ""), *rest], root)
    params = options.context.params
    arguments = [word for value in params["t"] or () for word in ("-T", str(value))]
    of_kinds = ",".join(map(pattern_of, kinds.values()))
    epochs = params.get("epochs") or task.epochs or 1
    limit = params.get("time_limit") or task.time_limit
    return SelectedTask(
        name=task.name,
        root=root,
        words=(sent, *own, *rest),
        check_words=(sent, *own, *arguments, "--sample-id", of_kinds),
        samples=samples,
        epochs=int(epochs),
        tier=max(demanded_tier(each.policy.risk, each.policy.tier) for each in kinds),
        memory_mib=max(_memory_mib(each.policy) for each in kinds),
        images=frozenset(name for each in kinds for name in each.policy.images),
        needs_hardware=any(needs_hardware(each.policy.risk) for each in kinds),
        policies=tuple(
            hashlib.sha256(json.dumps(each.policy.to_json(), sort_keys=True).encode()).hexdigest()
            for each in kinds
        ),
        time_limit_s=None if limit is None else float(limit),
        retries=int(params.get("retry_on_error") or 0),
        limits=tuple(filter(None, (params.get("max_samples"), params.get("max_sandboxes")))),
    )


def _memory_mib(policy: Policy | PresetPolicy) -> int:
    """Return the memory of a sample's cells: its own, and the target cells beside it."""
    stand_ins = policy.network.stand_ins.values() if policy.network is not None else ()
    targets = [each.resources for each in stand_ins if isinstance(each, TargetStandIn)]
    return -(-sum(map(cell_bytes, [policy.resources, *targets])) >> 20)


def _only(options: InspectOptions, tasks: Sequence[Task]) -> tuple[str, Task]:
    specs = options.context.params["tasks"]
    if len(tasks) != 1 or len(specs) != 1:
        what = f"a fleet runs one task, and {len(tasks)} are named"
        hint = "name one, as in file.py@task, and run the others after it"
        raise PolicyError(what, where=printable(", ".join(task.name for task in tasks)), hint=hint)
    model = options.model
    if isinstance(model, str) and ("," in model or model.startswith("belljar/")):
        what = "a fleet asks one model of a provider"
        hint = "run several models one after the other; a model in a cell runs on one machine"
        raise PolicyError(what, where=printable(f"--model {model}"), hint=hint)
    return specs[0], tasks[0]


def _check_shared(options: InspectOptions, selection: Selection, task: Task) -> None:
    """Refuse what would differ between units."""
    given = options.context.params.get("fail_on_error")
    bound = task.fail_on_error if given is None else given
    # True means the first error, and is a number in Python, too.
    if bound and not isinstance(bound, bool):  # Inspect would count each unit's errors
        what = "errors can't be counted over all units"
        hint = "give --fail-on-error (the first ends the evaluation) or --no-fail-on-error"
        raise PolicyError(what, where=f"--fail-on-error {bound}", hint=hint)
    if not selection.is_foreseen:
        what = "samples in a random order can't be shared among nodes"
        hint = "give it a seed: --sample-shuffle 42"
        raise PolicyError(what, where="--sample-shuffle", hint=hint)
    for name in _NOT_SHARED:
        if options.context.params.get(name):
            option = f"--{name.replace('_', '-')}"
            hint = "give its options on the command line"
            raise PolicyError("it can't be used with --fleet", where=option, hint=hint)


def _samples(task: Task, selection: Selection) -> tuple[str, ...]:
    """Return the ids, each of which `--sample-id` can name alone. Raises `PolicyError`."""
    from inspect_ai.dataset._util import normalise_sample_id

    everything = [str(sample.id) for sample in task.dataset]
    counts = Counter(map(normalise_sample_id, everything))
    chosen = [everything[each] for each in selection.positions(task, [task.name])]
    for sample in chosen:
        if counts[normalise_sample_id(sample)] == 1 and _PLAIN.fullmatch(sample):
            continue  # of thousands nearly all: to compare each with each takes minutes
        pattern = pattern_of(sample)
        named = [everything[each] for each in Selection(ids=[pattern]).positions(task, [task.name])]
        if named != [sample] or "," in pattern or pattern != pattern.strip():
            what = f"the id {printable(sample, max_chars=80)!r} can't be named alone by --sample-id"
            hint = "give each sample an id of its own without a comma or a leading zero"
            raise PolicyError(what, where=printable(task.name), hint=hint)
    return tuple(chosen)


def _without(words: Sequence[str]) -> list[str]:
    """The words without the options that choose samples, and their values."""
    kept: list[str] = []
    waiting = iter(words)
    for word in waiting:
        if word in _CHOSEN:
            next(waiting, None)
        elif not word.startswith(tuple(f"{option}=" for option in _CHOSEN)):
            kept.append(word)
    return kept


def _check_files(words: Iterable[str], root: Path | None) -> None:
    """Refuse words that name a file of this machine, unless it is found on a node as well."""
    here = Path.cwd()
    for word in words:
        named = word.rpartition("=")[2]
        if not named or (word.startswith("-") and "=" not in word):
            continue
        if not os.path.exists(named):  # noqa: PTH110 - a value may be longer than any name
            # An option's value, if it has one without `=`, is the next word.
            continue
        # A relative path is right on a node only if it starts at the task's directory.
        if Path(named).is_absolute() or here != root:
            what = f"`{printable(named)}` is a file of this machine, which no node has"
            hint = "put it beside the task, and run belljar in that directory"
            raise PolicyError(what, where=printable(word), hint=hint)
