"""One evaluation on many nodes: cutting, placing, watching, collecting, judging."""
