"""One evaluation on many nodes: cutting, placing, watching, collecting, judging.

`units` and `judge` decide, purely. `head` runs the evaluation, `node` and `guard` run on nodes,
`archive` moves run directories, and `engine` says what is asked of Ray, which only `ray_engine`
imports.
"""

from __future__ import annotations
