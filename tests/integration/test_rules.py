"""A range's rules on this kernel, with root's rights and with an ordinary user's: each change by
hand is told. What they let through, refuse and drop is shown on real ranges (`test_range`,
`test_range_ends`, `tests/security/test_egress`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import json, os, shutil, subprocess, sys, tempfile
from belljar.network import ipc
from belljar.network.supervisor import links, netfilter, main as supervisor
from belljar.network.packets import Tap
from belljar.plan.addresses import lay_out
from belljar.plan.network import NetworkPlan, PortPlan, StandInPlan
from belljar.plan.nft import changed_rules, known_rules
from belljar.plan.rules import render_rules

def stand_in(id, kind, port, protocol):
    ports = (PortPlan(number=port, protocol=protocol),)
    return StandInPlan(id=id, kind=kind, names=(f"{id}.example",), ports=ports, settings={})
plan = NetworkPlan(
    stand_ins=(stand_in("shop", "http", 80, "http"), stand_in("db", "cell", 5432, "tcp")))
layout = lay_out(plan, ("default",), random_bytes=bytes(range(32)), avoid=())
rendered = render_rules(layout, plan)
rules = os.memfd_create("rules", os.MFD_CLOEXEC)
ipc.fill(rules, rendered)
tool = shutil.which("nft", path=os.environ["PATH"] + ":/usr/sbin:/sbin")

def nft(*words, **options):
    return subprocess.run([tool, *words], check=True, stdout=subprocess.PIPE, **options).stdout
def load():
    nft("-j", "-f", "-", input=json.dumps(rendered).encode())
def differences():
    return list(changed_rules(known_rules(rendered), json.loads(nft("-j", "list", "ruleset"))))
def edited():
    load()
    seen = {"": differences()}
    for name, commands in json.loads(sys.argv[2]).items():
        for command in commands:
            nft(command)
        seen[name] = differences()
        load()
        seen[f"{name}, repaired"] = differences()
    return seen
def looked_at():
    task = supervisor.SupervisorTask(layout=layout, network=plan, nft=tool, uid=None,
                                     check_every_s=3600.0, timeout_s=30.0)
    owner, end = ipc.pair()
    with tempfile.TemporaryFile() as file:
        made = supervisor._Supervisor(task, end, known_rules(rendered), file.fileno())
        made._kernel = links.prepare_namespace(layout)
        with netfilter.rules_loaded(tool, rules):
            pass
        made._tap, made._changes = Tap(), netfilter.open_changes()
        made._look_at_rules()
        for command in json.loads(sys.argv[2]):
            nft(command)
        if (pid := os.fork()) == 0:
            made._look_at_rules()
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        end.close()
        return {"status": status, "told": ipc.receive(owner)[0] if status else {}}
print(json.dumps({"edited": edited, "looked_at": looked_at}[sys.argv[1]]()))
"""
EDITS = {
    "table inet range is gone": ["delete table inet range"],
    "table arp range is": ["flush ruleset"],
    "chain forward of inet range is": [
        "chain inet range forward { type filter hook forward priority 0; policy accept; }"
    ],
    "rules prerouting of inet range is changed": ["insert rule inet range prerouting accept"],
    "rules checked of inet range is changed": ["flush chain inet range checked"],
    "elements forbidden of inet range is changed": ["flush set inet range forbidden"],
    "table ip nat is not ours": [
        "add table ip nat",
        "add chain ip nat post { type nat hook postrouting priority 100; }",
    ],
    "rules unnamed of inet range is changed": [
        "add rule inet range unnamed meta l4proto udp goto refuse_udp"
    ],
}


@pytest.fixture(params=["root", "user"])
def who(request: pytest.FixtureRequest) -> list[str]:
    """Root's rights, or none but those in a user namespace of its own, as an ordinary user's."""
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    return [] if request.param == "root" else ["--user", "--map-root-user"]


def world(who: list[str], *words: str) -> Any:  # noqa: ANN401 - what the program prints
    argv = ["unshare", *who, "--net", sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, timeout=300)
    return json.loads(done.stdout)


@pytest.mark.promise("5.4")
def test_each_change_by_hand_is_named(who: list[str]) -> None:
    """What the kernel lists is what was rendered; after each of several edits the difference is
    told first of all; loading again mends it."""
    seen = world(who, "edited", json.dumps(EDITS))
    assert seen[""] == []
    for told in EDITS:
        assert seen[told][0].startswith(told), seen[told]
        assert seen[f"{told}, repaired"] == []


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
def test_what_was_changed_and_changed_back_is_told(
    who: list[str], changes: list[str], told: dict[str, object]
) -> None:
    """The kernel has told of it: the listing is as it was, and it is a breach all the same; without
    a change it is none."""
    seen = world(who, "looked_at", json.dumps(changes))
    assert seen == {"status": 1 if told else 0, "told": told}
