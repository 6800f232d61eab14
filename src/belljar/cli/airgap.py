"""`belljar airgap`."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import click

from belljar.cli.console import json_option, print_json, table_lines
from belljar.errors import HostError


@click.group()
def airgap() -> None:
    """Check which ways lead beyond this host."""


@airgap.command()
@json_option("Print one JSON object: air_gapped, findings.")
def check(*, as_json: bool) -> int:
    """Look and try whether anything leads beyond this host.

    Nothing is sent: the kernel is asked which way it would take. Each finding is absent, present or
    can't tell, with its evidence. Run it as root: others can't see all network namespaces, nor try
    TCP.

    \b
    Exit codes:
      0  all are absent: this host is air-gapped as far as it can be seen from here
      3  one is present, or can't be told
    """
    from belljar.airgap import check_air_gap, is_air_gapped

    findings = check_air_gap()
    is_gapped = is_air_gapped(findings)
    if as_json:
        listed = [asdict(each) for each in findings]
        print_json({"air_gapped": is_gapped, "findings": listed})
    else:
        rows = [[str(value) for value in asdict(each).values()] for each in findings]
        click.echo("\n".join(table_lines(rows, styled=1)))
        counts = Counter(each.state.value for each in findings)
        named = ", ".join(f"{count} {state}" for state, count in counts.items())
        click.echo(f"\n{'' if is_gapped else 'not '}air-gapped: {named}")
    return 0 if is_gapped else HostError.exit_code
