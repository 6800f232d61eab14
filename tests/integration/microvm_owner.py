"""An owner of one cell in a process of its own: `microvm_owner.py HOME` prints one JSON object when
the cell stands, and ends it when standard input does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio
import anyio.to_thread

from belljar.channel import ExecRequest
from belljar.events import Event
from belljar.image.kernel import Kernel, current_kernel
from belljar.image.store import Image, Store
from belljar.isolation.microvm.clone import open_vm
from belljar.isolation.trials import find_facts
from belljar.plan.make import make_plan
from belljar.plan.model import ImageFacts, MicrovmPlan
from belljar.policy.limits import Resources
from belljar.policy.load import load_preset


class Kinds:
    """Notes the kinds of what is recorded: this program runs where no other file of the tests is."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def record(self, event: Event) -> int:
        """Note it."""
        self.seen.append(event.kind.value)
        return len(self.seen) - 1


def parts(home: Path, resources: Resources | None = None) -> tuple[MicrovmPlan, Image, Kernel]:
    """The preset `high` on this host, emulated: what a test can run anywhere; with other resources
    if given."""
    policy = load_preset("high").policy
    if resources is not None:
        policy = policy.model_copy(update={"resources": resources})
    image = Store(home).find(policy.image)
    facts = find_facts(home)
    image_facts = ImageFacts(
        digest=image.digest,
        name=policy.image,
        user=image.user,
        workdir=image.workdir,
        env=dict(image.env),
    )
    plan = make_plan(policy, facts, image_facts)
    assert isinstance(plan, MicrovmPlan)
    return plan, image, current_kernel(home)


async def own(home: Path) -> None:
    """One cell, until standard input ends."""
    recorder = Kinds()
    plan, image, kernel = parts(home)
    async with open_vm(plan, image, kernel, home=home, recorder=recorder, planned={}) as vm:
        outcome = await vm.client.exec(ExecRequest(argv=("/bin/sh", "-c", "id -u; uname -s")))
        said = {
            "cell_id": vm.cell_id,
            "host_pid": vm.host_pid,
            "stdout": outcome.stdout.decode(),
            "kinds": recorder.seen,
            "bounded_by": vm.memory_bounded_by,
        }
        print(json.dumps(said), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
        destruction = await vm.destroy()
    print(
        json.dumps({"survivors": destruction.survivors, "duration_ms": destruction.duration_ms}),
        flush=True,
    )


if __name__ == "__main__":
    anyio.run(own, Path(sys.argv[1]))
