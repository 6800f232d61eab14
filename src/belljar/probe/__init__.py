"""Containment tests carried out from inside a cell, and their verdict.

`catalogue` says what is tried, `run.probe_cell` has it tried in a running cell, `witness` is what
the host lays out and looks at, `judge` decides. `design/evidence.md` has the rules.

Must not: ever report *contained* on the guest's word alone.
"""
