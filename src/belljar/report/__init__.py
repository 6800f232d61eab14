"""Ledger → findings → what a person reads.

Must not: talk to a live cell.
"""
