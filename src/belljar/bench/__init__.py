"""Measures cells on this host, beside Docker where it is installed, in one run.

Lives here: `figures` (pure: percentiles and ratios), `cells` (Belljar's own times) and `docker`
(with the same root file system).
Must not: judge. A figure is shown with its raw samples and its failures; nothing is asserted.
"""
