"""Which sample a cell is made for, as Inspect knows it at that moment.

Reads Inspect's active sample, changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from belljar.differences import Difference, Kind
from belljar.events import JsonValue
from belljar.policy import LoadedPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleIdentity:
    """A sample's names.

    `uuid` is what Inspect's log calls the sample's run; "" when there is no running sample (direct
    use of the provider).
    """

    sample: str
    epoch: int
    task: str
    uuid: str = ""
    eval_id: str = ""
    log: str = ""

    def started(
        self, policy: LoadedPolicy, differences: Iterable[Difference] = ()
    ) -> dict[str, JsonValue]:
        """As the data of its beginning: `log` is where Inspect writes the log that will have it,
        `host_tools` the tools that may act outside of the cell, `differences` what is not as the
        task's author or the policy's wrote it."""
        return {
            **self.data(),
            "log": self.log,
            "host_tools": list(policy.policy.host_tools_rule.allow),
            "differences": [each.data() for each in differences if each.kind is not Kind.KEPT],
        }

    def data(self) -> dict[str, JsonValue]:
        """As an event's data."""
        return {
            "sample": self.sample,
            "epoch": self.epoch,
            "task": self.task,
            "uuid": self.uuid,
            "eval_id": self.eval_id,
        }


def identify(task_name: str, metadata: Mapping[str, object]) -> SampleIdentity:
    """The identity of the sample that Inspect is starting in this context."""
    from inspect_ai.log._samples import sample_active

    active = sample_active()
    named = str(metadata.get("__sample_id__", ""))
    if active is None:
        return SampleIdentity(sample=named or "-", epoch=1, task=task_name)
    return SampleIdentity(
        sample=named or str(active.sample.id),
        epoch=active.epoch,
        task=active.task,
        uuid=active.sample_uuid,
        eval_id=active.eval_id,
        log=_absolute(active.log_location),
    )


def is_preparing() -> bool:
    """Inspect prepares the sample of this context (files, setup script, tools); its solver has not
    begun.

    Inspect logs nothing of a sample that ends here. False outside of a sample.
    """
    from inspect_ai.log._samples import sample_active

    active = sample_active()
    return active is not None and active.started is None


def _absolute(location: str) -> str:
    """Where the log is, whoever asks: Inspect names it from the directory it runs in."""
    # Path would resolve no `..`.
    return location if "://" in location else os.path.abspath(location)  # noqa: PTH100
