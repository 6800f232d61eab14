"""One evaluation on many nodes: cutting, placing, watching, collecting, judging.

`units` and `judge` decide, purely. `head` runs the evaluation, `node` and `guard` run on nodes,
`archive` moves run directories, and `engine` alone imports Ray, when a fleet is asked for.
"""

from __future__ import annotations
