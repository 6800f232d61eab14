"""How an entry of the catalogue is written."""

from __future__ import annotations

from collections.abc import Mapping

from belljar.probe.model import Probe, Side, Witness


def entry(
    group: str,
    what: str,
    *,
    tries: str,
    why: str,
    breach: str,
    witness: Witness | None = None,
    quick: bool = False,
    expected: Mapping[str, str] | None = None,
) -> Probe:
    """A probe of `group`; whose word decides follows from whether the host has a witness."""
    return Probe(
        name=f"{group}.{what}",
        group=group,
        tries=tries,
        why=why,
        breach=breach,
        side=Side.GUEST if witness is None else Side.HOST,
        witness=witness,
        quick=quick,
        expected=dict(expected or {}),
    )
