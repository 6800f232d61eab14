"""Problems in stand-ins' settings and files, with places."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from belljar.network.stand_ins import check
from belljar.network.stand_ins.faults import Faults
from belljar.plan.network import StandInPlan, plan_network
from belljar.policy import yaml_tree
from belljar.policy.load import Examined, examine, refusal
from belljar.policy.loaded import LoadedPolicy
from belljar.policy.stand_ins import PythonStandIn, StandIn
from belljar.policy.yaml_tree import Problem, YamlTree, closest_mark, field_name, read_tree


def stand_in_problems(loaded: LoadedPolicy) -> tuple[Problem, ...]:
    """In the order of the policy's text.

    Raises:
        HostError: a library that reads them is not installed.
        PolicyError: a stand-in has files, and the policy has no directory of its own.
    """
    network = loaded.policy.network
    if network is None:
        return ()
    tree = read_tree(loaded.text)
    plans = {plan.id: plan for plan in plan_network(network, loaded.base).stand_ins}
    found = [
        problem
        for name, item in network.stand_ins.items()
        for problem in _of_one(item, plans[name], ("network", "stand_ins", name), tree)
    ]
    return tuple(sorted(found, key=lambda problem: problem.mark))


def examine_all(text: bytes, *, source: str, base: Path, default_name: str) -> Examined:
    """Problems of a policy and of its stand-ins' files.

    The latter are looked at once no field of the policy is wrong. Raises as `stand_in_problems`.
    """
    found = examine(text, base=base, default_name=default_name)
    if found.policy is None:
        return found
    known = {problem.field for problem in found.problems}
    loaded = LoadedPolicy(policy=found.policy, text=text, source=source, base=base)
    more = [problem for problem in stand_in_problems(loaded) if problem.field not in known]
    problems = sorted((*found.problems, *more), key=lambda problem: problem.mark)
    return found._replace(problems=tuple(problems))


def check_stand_ins(loaded: LoadedPolicy) -> None:
    """Raises `PolicyError` with all `stand_in_problems`."""
    if problems := stand_in_problems(loaded):
        raise refusal(problems, loaded.source)


def _of_one(
    item: StandIn, plan: StandInPlan, where: yaml_tree.Path, tree: YamlTree
) -> Iterator[Problem]:
    faults: Faults = ()
    if not isinstance(item, PythonStandIn) and not plan.is_target:
        faults = check(plan.kind, plan.settings, plan.directory)
    own_field, own = item.own_path()
    for fault in faults:
        below: yaml_tree.Path = (own_field,) if own_field else ()
        message = str(fault)
        if fault.file:
            if own_field and own_field == item.file_field:
                message = f"{PurePosixPath(own).parent}/{message}"
        elif fault.path and fault.path[0] in type(item).model_fields:
            below, message = fault.path, fault.message
        path = (*where, *below)
        yield Problem(mark=closest_mark(tree, path), field=field_name(path), message=message)
