"""Containment tests carried out from inside a cell, and their verdict: `design/evidence.md`.

Must not: ever report *contained* on the guest's word alone.
"""
