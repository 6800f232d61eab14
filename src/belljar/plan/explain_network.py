"""A range's network in words: reach, bounds, warnings."""

from __future__ import annotations

from collections.abc import Iterator

from belljar.plan.model import REAL, Bound, bound
from belljar.plan.network import CATCH_ALL_PORTS, NetworkPlan, PortPlan, plan_network
from belljar.policy.guarding import METADATA_ADDRESS
from belljar.policy.loaded import LoadedPolicy
from belljar.units import format_size, printable


def reach(network: NetworkPlan) -> Iterator[str]:
    """Every stand-in by name and port, then what is caught, then what is real."""
    gateway = "without capabilities or any route"
    if network.upstreams:
        gateway = "which is handed connections to what is called REAL below, by this host"
    yield (
        "a network of the range's own, of which no packet gets out: no internet, no LAN, no "
        "address of this host, no other range; packets to anything else are refused and counted"
    )
    for item in network.stand_ins:
        if item.is_detached:
            yield f"{printable(item.id)} (a cell without a network): by commands alone"
            continue
        names = [printable(name) for name in item.names]
        if item.kind == "metadata":
            names.append(METADATA_ADDRESS)
        by = "a target cell of the range" if item.is_target else "simulated by the gateway"
        ports = "every TCP port" if item.all_ports else _ports(item.ports)
        yield f"{printable(item.id)} ({item.kind}, {by}): {', '.join(names)} on {ports}"
    if network.default == "simulate":
        yield f"ANY other name, on {_ports(CATCH_ALL_PORTS)}: simulated (`default: simulate`)"
    else:
        yield "no other name: it doesn't exist (NXDOMAIN)"
    if network.sink:
        yield "ANY other TCP port of any address: a sink that records and closes (`sink: true`)"
    yield f"the range's gateway, which answers all this: a confined process, {gateway}"
    yield from real(network)


def _ports(ports: tuple[PortPlan, ...]) -> str:
    return ", ".join(f"{port.number}/{port.protocol}" for port in ports)


def real(network: NetworkPlan) -> tuple[str, ...]:
    """A sentence for each host that is not simulated."""
    return tuple(
        f"{REAL}{printable(item.host)} on {', '.join(map(str, item.ports))}, by "
        f"{', '.join(item.methods)}, dialled by this host for the gateway; in both directions at "
        f"most {format_size(item.budget_bytes)} for each sample and "
        f"{format_size(item.run_budget_bytes)} for all samples of a run. Why: "
        f"{printable(item.reason)}"
        for item in network.upstreams
    )


def announcements(loaded: LoadedPolicy) -> tuple[str, ...]:
    """As `real`, of a policy. Raises as `plan_network`."""
    network = loaded.policy.network
    return () if network is None else real(plan_network(network, loaded.base))


def bounds(network: NetworkPlan) -> tuple[Bound, ...]:
    """Bounds of what the cells can make grow by what they send; `plan --json` has every limit."""
    most = network.bounds
    return (
        bound(
            "connections to the gateway",
            f"{most.connections:,} open at one time, {most.connections_per_cell:,} of one cell",
            "the range's packet rules",
            "the gateway",
        ),
        bound(
            "packet record on this host's disk",
            f"{format_size(most.packet_record_bytes)}; what cells send beyond it makes the sample "
            f"void",
            "the range supervisor",
        ),
        bound(
            "the range's events and bodies in the ledger",
            f"{format_size(most.recorded_bytes)}; a further event ends the range",
            "the range's owner",
        ),
    )


def warnings(network: NetworkPlan) -> tuple[str, ...]:
    """What the author should know of this network."""
    if not network.upstreams:
        return ()
    hosts = ", ".join(printable(item.host) for item in network.upstreams)
    what = "what the model sends there leaves this host"
    return (f"this range reaches something real ({hosts}): {what}",)
