"""Containment tests carried out from inside a cell. Empty for now.

Must not: ever report *contained* on the guest's word alone.
"""
