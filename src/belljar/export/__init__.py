"""Turns a run's record into other formats. Pure, apart from signing.

Lives here: Timesketch, OCSF, OTLP, asciicast and the in-toto statement, one file each.
Must not: judge, or change the record's statements. Facts without a place in a format stay as they
are (`unmapped`, attributes). An exported file proves nothing by itself: the record does.
"""
