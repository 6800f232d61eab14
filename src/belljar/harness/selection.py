"""Which samples of a task run: `--limit`, `--sample-id` and `--sample-shuffle`, as Inspect reads
them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inspect_ai import Task

    from belljar.harness.options import InspectOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The operator's choice.

    Attributes:
        limit: how many from the first, or a slice's start and stop.
        ids: patterns, each of any task or `task:pattern`.
        shuffle: a seed; True: an order that nobody chose.
    """

    limit: int | tuple[int, int] | None = None
    ids: Sequence[str | int] | None = None
    shuffle: bool | int | None = None

    @property
    def is_foreseen(self) -> bool:
        """Whether another run chooses the same samples."""
        return self.shuffle is not True

    def order(self, task: Task) -> None:
        """Put the samples in the order in which they run, with the ids that Inspect gives them."""
        if self.shuffle and not task.dataset.shuffled:
            task.dataset.shuffle(None if self.shuffle is True else self.shuffle)
        for position, sample in enumerate(task.dataset):
            if sample.id is None:
                sample.id = position + 1

    def positions(self, task: Task, names: Iterable[str]) -> list[int]:
        """Those that run of an ordered task. `names`: of all tasks of the run."""
        from inspect_ai._eval.task.util import resolve_task_sample_ids, sample_id_filter

        everything = range(len(task.dataset))
        if self.ids is None:
            first, last = self.limit if isinstance(self.limit, tuple) else (0, self.limit)
            return list(everything[first:last])
        ids = resolve_task_sample_ids(task.name, list(self.ids), names)
        matcher = sample_id_filter(ids if ids is not None else [])
        return [position for position in everything if matcher.matches(task.dataset[position].id)]


def read_selection(options: InspectOptions) -> Selection:
    """The options, and what the run configuration says where they are not given."""
    from inspect_ai._util.samples import parse_sample_id, parse_samples_limit

    params, configured = options.context.params, options.configured
    limit = parse_samples_limit(params.get("limit"))
    if limit is None:
        limit = configured.get("limit")
    given = parse_sample_id(params.get("sample_id"))
    ids: Any = given if given is not None else configured.get("sample_id")
    shuffle = params.get("sample_shuffle") or configured.get("sample_shuffle")
    return Selection(
        limit=(limit[0], limit[1]) if isinstance(limit, (list, tuple)) else limit,
        ids=[ids] if isinstance(ids, (str, int)) else ids,
        shuffle=True if shuffle == -1 else shuffle or None,
    )
