"""One evaluation on many nodes: cut, placed, watched, collected, judged."""
