"""Turns the record of a run into other people's formats. Pure, apart from signing.

Lives here: Timesketch, OCSF, OTLP, asciicast and the in-toto statement, one file each.
Must not: judge, or change what the record says. A format that has no place for a fact gets it as it
is (`unmapped`, attributes), and an exported file proves nothing by itself: the record does.
"""
