"""Measures cells on this host, beside the container tools that it has, in one run.

Lives here: `figures` (pure: percentiles and ratios), `cells` (Belljar's own times) and `peers`
(Docker, runc, runsc and bubblewrap with the same root file system).
Must not: judge. A figure is shown with its raw samples and its failures; nothing is asserted.
"""
