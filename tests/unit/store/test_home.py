"""Where the store is."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.store.home import belljar_home


@pytest.mark.parametrize(
    ("environ", "uid", "home"),
    [
        ({"BELLJAR_HOME": "/srv/b", "XDG_DATA_HOME": "/x", "HOME": "/h"}, 0, "/srv/b"),
        ({"BELLJAR_HOME": "", "HOME": "/h"}, 1000, "/h/.local/share/belljar"),
        ({"HOME": "/root"}, 0, "/var/lib/belljar"),
        ({"XDG_DATA_HOME": "/x", "HOME": "/h"}, 1000, "/x/belljar"),
        ({"XDG_DATA_HOME": "relative", "HOME": "/h"}, 1000, "/h/.local/share/belljar"),
    ],
)
def test_the_store_is_where_the_variables_and_the_user_say(
    environ: dict[str, str], uid: int, home: str
) -> None:
    """`BELLJAR_HOME` first; root's is the system's, a user's own is under XDG's data directory."""
    assert belljar_home(environ, uid=uid) == Path(home)
