"""Shows runs while they last, from their records.

Lives here: `feed` (reads what was added to ledgers, and what cells use) and `server` (the page).
Must not: hold what a crash could lose, judge, or act but by the kill switch that `belljar kill` is.
"""
