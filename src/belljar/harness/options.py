"""The options of `inspect eval` that Belljar sets itself, and the selected samples.

All are read before a task is loaded, which runs its Python.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from belljar.errors import HostError, PolicyError
from belljar.harness.config import OURS, Preview
from belljar.harness.operator import Operator, read_dotenv
from belljar.harness.source import RealCells
from belljar.host.cgroups import cell_bytes
from belljar.policy.limits import Risk, Tier, demanded_tier
from belljar.policy.stand_ins import TargetStandIn
from belljar.units import printable
from belljar.waiting import print_status

if TYPE_CHECKING:
    from inspect_ai import Task

    from belljar.policy.loaded import PresetPolicy
    from belljar.policy.model import Policy

_PREFIX: Final = "INSPECT_EVAL"  # Click reads an option also from a variable with this prefix
# Belljar sets these itself, whatever another source says; typed, they are refused with this hint.
TAKEN: Final[Mapping[str, str]] = {
    "sandbox": "the sandbox is Belljar's; --policy says what it may be",
    "log_dir": "the log goes into the run directory",
    "no_log_samples": "the samples' log is evidence: without it no verdict can be given",
    "detach": "the cells live in this process",
    "json_output": "use belljar's --json",
}
LOG_PATTERN: Final = "INSPECT_EVAL_LOG_FILE_PATTERN"  # with a `/` the log would leave the run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    inspect_args: Sequence[str]
    policy: str = ""
    allow_upstreams: bool = False
    tier: str = ""
    require_contained: bool = False
    quiet: bool = False  # standard output stays free for the caller
    home: Path | None = None
    source: RealCells = field(default_factory=RealCells)

    def operator(self) -> Operator:
        is_file = self.policy and os.path.lexists(self.policy)  # Inspect changes directory
        policy = str(Path(self.policy).absolute()) if is_file else self.policy
        return Operator(run_policy=policy, tier=self.tier, allow_upstreams=self.allow_upstreams)


def model_of(context: click.Context) -> object:
    return context.params.get("model") or context.params.get("model_spec")


def read_options(arguments: Sequence[str]) -> click.Context:
    """Parse Inspect's options with its own parser, and check them. Loads no task.

    Raises `click.UsageError`, `HostError` without Inspect, and `PolicyError` for what `--env`, a
    run configuration or a `.env` file may not set.
    """
    dotenv = read_dotenv(os.environ)  # before Inspect sets what is in it
    from inspect_ai._cli.eval import eval_command
    from inspect_ai._util.dotenv import init_dotenv

    init_dotenv()
    if dotenv:
        print_status(f"belljar: {dotenv}")
    context = eval_command.make_context("belljar run", list(arguments), auto_envvar_prefix=_PREFIX)
    for option, hint in TAKEN.items():
        is_ours = option == "sandbox" and context.params[option] == OURS
        if _is_typed(context, option) and not is_ours:
            name = next(each.opts[0] for each in context.command.params if each.name == option)
            raise click.UsageError(f"{name} can't be used with belljar run: {hint}", context)
        if context.get_parameter_source(option) is click.core.ParameterSource.ENVIRONMENT:
            print_status(f"belljar: a variable's `{option}` counts for nothing: {hint}")
    if context.params.get("run_config"):
        what, where = "a run configuration can't be used with belljar run", "--run-config"
        raise PolicyError(what, where=where, hint="give what it says as options")
    for text in context.params.get("env") or ():
        # `--env` writes `-` as `_`, and sets the variable only when Inspect starts: unchecked.
        name = str(text).partition("=")[0].strip().replace("-", "_")
        # They select this host's programs, the store or the log's place.
        if name.startswith(("BELLJAR_", "LD_")) or name in ("PATH", LOG_PATTERN):
            what = f"--env {printable(name)} can't be used with belljar run"
            raise PolicyError(what, hint="set it in the environment of belljar run")
    return context


def _is_typed(context: click.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is click.core.ParameterSource.COMMANDLINE and bool(context.params[option])


@contextlib.contextmanager
def explicit_arguments(context: click.Context, log_dir: Path) -> Iterator[None]:
    """Raises `HostError` where Inspect takes them from elsewhere."""
    from inspect_ai._cli import eval as command

    arguments = {
        "sandbox": OURS,
        "log_dir": str(log_dir),
        "log_format": context.params.get("log_format") or "eval",
        "log_samples": True,
        "sandbox_cleanup": not _is_typed(context, "no_sandbox_cleanup"),
    }
    original = getattr(command, "eval", None)
    if not callable(original) or "eval" not in command.eval_exec.__code__.co_names:
        raise unknown_inspect("its command line does not call `eval`")

    def call(*positional: Any, **given: Any) -> Any:  # noqa: ANN401 - Inspect's own arguments
        return original(*positional, **{**given, **arguments})

    command.__dict__["eval"] = call
    pattern = os.environ.pop(LOG_PATTERN, None)
    try:
        yield
    finally:
        command.__dict__["eval"] = original
        if pattern is not None:
            os.environ[LOG_PATTERN] = pattern


def unknown_inspect(what: str) -> HostError:
    from importlib.metadata import version

    hint = "install one that this Belljar was tested with: pip install 'belljar-sandbox[inspect]'"
    return HostError(f"inspect-ai {version('inspect-ai')} is not known: {what}", hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """`limit`: a count, or start and stop. `ids`: patterns, each of any task or `task:pattern`.
    `shuffle`: a seed; True: random in each run.
    """

    limit: int | tuple[int, int] | None = None
    ids: Sequence[str | int] | None = None
    shuffle: bool | int | None = None

    def order(self, task: Task) -> None:
        """Order and number the samples as Inspect does."""
        if self.shuffle and not task.dataset.shuffled:
            task.dataset.shuffle(None if self.shuffle is True else self.shuffle)
        for position, sample in enumerate(task.dataset):
            if sample.id is None:
                sample.id = position + 1

    def positions(self, task: Task, names: Iterable[str]) -> list[int]:
        from inspect_ai._eval.task.util import resolve_task_sample_ids, sample_id_filter

        everything = range(len(task.dataset))
        if self.ids is None:
            first, last = self.limit if isinstance(self.limit, tuple) else (0, self.limit)
            return list(everything[first:last])
        ids = resolve_task_sample_ids(task.name, list(self.ids), names)
        matcher = sample_id_filter(ids if ids is not None else [])
        return [position for position in everything if matcher.matches(task.dataset[position].id)]


def read_selection(options: click.Context) -> Selection:
    from inspect_ai._util.samples import parse_sample_id, parse_samples_limit

    params = options.params
    ids: Any = parse_sample_id(params.get("sample_id"))
    shuffle = params.get("sample_shuffle")
    return Selection(
        limit=parse_samples_limit(params.get("limit")),
        ids=[ids] if isinstance(ids, (str, int)) else ids,
        shuffle=True if shuffle == -1 else shuffle or None,
    )


_CHOSEN: Final = ("--limit", "--sample-id", "--sample-shuffle")  # a unit names its own
_PLAIN: Final = re.compile(r"[^\s,:*?\[]+")  # an id without a sign that `--sample-id` reads


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedTask:
    """One task, what of it was selected, and what its cells demand.

    `root`: the directory of its file; None for a task of a package. `words`: the task and options,
    without the selection. `memory_mib`: of a sample's full cells. `limits`: the operator's, of
    samples and cells at a time.
    """

    name: str
    root: Path | None
    words: tuple[str, ...]
    check_words: tuple[str, ...]
    samples: tuple[str, ...]
    epochs: int
    tier: Tier
    images: frozenset[str] = frozenset()
    time_limit_s: float | None = None
    retries: int = 0
    memory_mib: int = 1216
    needs_hardware: bool = False
    limits: tuple[int, ...] = ()

    def unit_words(self, samples: Iterable[str], *, cells: int) -> list[str]:
        several = ["--max-samples", str(cells), "--max-sandboxes", str(cells)]
        return [*self.words, "--sample-id", ",".join(samples), *several]


def select_task(
    request: RunRequest, loaded: tuple[click.Context, list[Task], list[Preview]]
) -> SelectedTask:
    """Raises a sample's error; `PolicyError` for what has no parts."""
    options, tasks, previews = loaded
    for each in previews:
        if each.error is not None and not isinstance(each.error, HostError):
            raise each.error  # what a node lacks, each node says itself
    selection = read_selection(options)
    _check_shared(options, selection, tasks)
    spec, task = options.params["tasks"][0], tasks[0]
    samples = _samples(task, selection)
    path, at, name = spec.partition("@")
    root = Path(path).absolute().parent if Path(path).is_file() else None
    # One sample of each kind: a node checks no more.
    kinds = {each.policy: each.sample for each in previews if each.policy is not None}
    if not samples or not kinds:
        raise PolicyError("no sample is selected", where=printable(task.name))
    params = options.params
    words = (f"{Path(path).name}{at}{name}" if root else spec, *_words(request, spec))
    epochs = params.get("epochs") or task.epochs or 1
    limit = params.get("time_limit") or task.time_limit
    return SelectedTask(
        name=task.name,
        root=root,
        words=words,
        check_words=(*words, "--sample-id", ",".join(kinds.values())),
        samples=samples,
        epochs=int(epochs),
        tier=max(demanded_tier(each.policy.risk, each.policy.tier) for each in kinds),
        memory_mib=max(_memory_mib(each.policy) for each in kinds),
        images=frozenset(name for each in kinds for name in each.policy.images),
        needs_hardware=any(each.policy.risk is Risk.CRITICAL for each in kinds),
        time_limit_s=None if limit is None else float(limit),
        retries=int(params.get("retry_on_error") or 0),
        limits=tuple(filter(None, (params.get("max_samples"), params.get("max_sandboxes")))),
    )


def _words(request: RunRequest, spec: str) -> Iterator[str]:
    yield from ("--policy", request.policy) if request.policy else ()
    yield from ("--allow-upstreams",) if request.allow_upstreams else ()
    yield from ("--tier", request.tier) if request.tier else ()
    words = iter(request.inspect_args)
    for word in words:
        if word in _CHOSEN:
            next(words, None)
        elif word != spec and not word.startswith(tuple(f"{option}=" for option in _CHOSEN)):
            yield word


def _memory_mib(policy: Policy | PresetPolicy) -> int:
    stand_ins = policy.network.stand_ins.values() if policy.network is not None else ()
    targets = [each.resources for each in stand_ins if isinstance(each, TargetStandIn)]
    return -(-sum(map(cell_bytes, [policy.resources, *targets])) >> 20)


def _samples(task: Task, selection: Selection) -> tuple[str, ...]:
    """Raises `PolicyError` unless `--sample-id` can name each alone."""
    from inspect_ai.dataset._util import normalise_sample_id

    everything = [str(sample.id) for sample in task.dataset]
    counts = Counter(map(normalise_sample_id, everything))
    chosen = [everything[each] for each in selection.positions(task, [task.name])]
    for sample in chosen:
        if counts[normalise_sample_id(sample)] > 1 or not _PLAIN.fullmatch(sample):
            what = f"the id {printable(sample, max_chars=80)!r} can't be named alone by --sample-id"
            hint = "give each sample an id of its own without blanks and any of , : * ? ["
            raise PolicyError(what, where=printable(task.name), hint=hint)
    return tuple(chosen)


def _check_shared(options: click.Context, selection: Selection, tasks: Sequence[Task]) -> None:
    """Raise `PolicyError` for what would differ between units."""
    model = str(model_of(options))
    given = options.params.get("fail_on_error")
    bound = tasks[0].fail_on_error if given is None else given
    # True means the first error; of a number Inspect would count each unit's.
    is_count = bool(bound) and not isinstance(bound, bool)
    is_one = len(tasks) == len(options.params["tasks"]) == 1
    for is_wrong, where, hint in (
        (not is_one, ", ".join(task.name for task in tasks), "name one task, as in file.py@task"),
        ("," in model or model.startswith(f"{OURS}/"), "--model", "name one, of a provider"),
        (is_count, "--fail-on-error", "give no number: the first error ends the evaluation"),
        (selection.shuffle is True, "--sample-shuffle", "give it a seed: --sample-shuffle 42"),
    ):
        if is_wrong:
            what = "it can't be shared among a fleet's nodes"
            raise PolicyError(what, where=printable(where), hint=hint)
