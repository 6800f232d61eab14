"""Problems in stand-ins' settings and files, with places."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from belljar.network.stand_ins import check
from belljar.plan.network import plan_network
from belljar.policy import yaml_tree
from belljar.policy.load import Examined, examine, refusal
from belljar.policy.loaded import LoadedPolicy
from belljar.policy.stand_ins import PythonStandIn
from belljar.policy.yaml_tree import Problem, closest_mark, field_name, read_tree


def stand_in_problems(loaded: LoadedPolicy) -> tuple[Problem, ...]:
    """Return them in the text's order. Raises `HostError`, `PolicyError`."""
    network = loaded.policy.network
    if network is None:
        return ()
    tree = read_tree(loaded.text)
    plans = {plan.id: plan for plan in plan_network(network, loaded.base).stand_ins}
    found = list[Problem]()
    for name, item in network.stand_ins.items():
        plan, (own_field, own) = plans[name], item.own_path()
        is_simulated = not isinstance(item, PythonStandIn) and not plan.is_target
        for fault in check(plan.kind, plan.settings, plan.directory) if is_simulated else ():
            below: yaml_tree.Path = (own_field,) if own_field else ()
            message = str(fault)
            if fault.file and own_field and own_field == item.file_field:
                message = f"{PurePosixPath(own).parent}/{message}"
            elif not fault.file and fault.path and fault.path[0] in type(item).model_fields:
                below, message = fault.path, fault.message
            path = ("network", "stand_ins", name, *below)
            mark = closest_mark(tree, path)
            found.append(Problem(mark=mark, field=field_name(path), message=message))
    return tuple(sorted(found, key=lambda problem: problem.mark))


def examine_all(text: bytes, *, source: str, base: Path, default_name: str) -> Examined:
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
