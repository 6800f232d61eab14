"""Rules that were changed and changed back before anybody looked: the kernel has told of it, and
whoever looks next hears that."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

OWN = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--net"]
PROGRAM = """
import json, os, shutil, subprocess, sys, tempfile
from belljar.network import ipc
from belljar.network.supervisor import links, netfilter, main as supervisor
from belljar.network.packets import Tap
from belljar.plan.addresses import lay_out
from belljar.plan.network import NetworkPlan
from belljar.plan.rules import render_rules

plan = NetworkPlan(stand_ins=())
layout = lay_out(plan, ("default",), random_bytes=bytes(32), avoid=())
rules = ipc.new_file()
ipc.fill(rules, render_rules(layout, plan))
tool = shutil.which("nft", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
task = supervisor.SupervisorTask(layout=layout, network=plan, nft=tool, uid=None, check_every_s=3600.0, timeout_s=30.0)
owner, end = ipc.pair()
with tempfile.TemporaryFile() as file:
    made = supervisor._Supervisor(task, end, rules, file.fileno())
    made._kernel = links.prepare_namespace(layout)
    with netfilter.Loading(tool, rules) as loading:
        loading.finish()
    made._tap = Tap()
    made._changes = netfilter.open_changes()
    made._look_at_rules()
    for words in sys.argv[1:]:
        subprocess.run([tool, *words.split()], check=True)
    if (pid := os.fork()) == 0:
        made._look_at_rules()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    end.close()
    told = ipc.receive(owner)[0] if status else {}
print(json.dumps({"status": status, "told": told}))
"""


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ([], {}),
        (
            ["add table ip other", "delete table ip other"],
            {"breach": ["its rules were changed, and changed back"]},
        ),
    ],
)
def test_what_the_kernel_told_is_not_thrown_away(
    changes: list[str], told: dict[str, object]
) -> None:
    """The listing is as it was, and it is a breach all the same; without a change it is none."""
    done = subprocess.run(
        [*OWN, sys.executable, "-c", PROGRAM, *changes],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert json.loads(done.stdout) == {"status": 1 if told else 0, "told": told}
