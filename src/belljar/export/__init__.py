"""Turns a run's record into other formats. Pure, apart from signing.

Must not judge, or change the record's statements.
"""
