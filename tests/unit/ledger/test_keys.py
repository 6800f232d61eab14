"""The signing key."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from belljar.errors import HostError, LedgerError
from belljar.ledger.keys import KEY_FILE, load_or_make_key, local_fingerprint, signature_is_good


def test_made_once_and_private(home: Path) -> None:
    """The first use makes the key, readable by its owner only, also where threads race for it."""
    assert local_fingerprint(home) is None
    with ThreadPoolExecutor(8) as pool:
        keys = {key.fingerprint for key in pool.map(load_or_make_key, [home] * 32)}
    assert keys == {local_fingerprint(home)}
    assert (home / "keys" / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (home / "keys").iterdir()] == [KEY_FILE]
    key = load_or_make_key(home)
    assert key.seed.hex() not in repr(key)
    assert repr(key.seed) not in repr(key)


@pytest.mark.parametrize(
    "content",
    [b"", b"not a key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"],
)
def test_a_damaged_key_is_not_replaced(home: Path, content: bytes) -> None:
    """It is an error: making another in its place would orphan older runs silently."""
    load_or_make_key(home)
    (home / "keys" / KEY_FILE).write_bytes(content)
    with pytest.raises(LedgerError, match="damaged"):
        load_or_make_key(home)
    assert (home / "keys" / KEY_FILE).read_bytes() == content


def test_a_key_of_others_is_refused(home: Path, tmp_path: Path) -> None:
    """What others could read may have signed anything; a symlink in its place is not followed."""
    load_or_make_key(home)
    (home / "keys" / KEY_FILE).chmod(0o640)
    with pytest.raises(LedgerError, match="open to others"):
        load_or_make_key(home)
    (home / "keys" / KEY_FILE).rename(tmp_path / "elsewhere")
    (home / "keys" / KEY_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HostError, match="can't be used"):
        load_or_make_key(home)


def test_a_new_key_outlives_a_power_loss(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is on the disk before it signs: no run is left whose key nobody has."""
    synced: list[Path] = []
    monkeypatch.setattr("belljar.store.home.sync_file", synced.append)
    load_or_make_key(home)
    assert synced == [home / "keys", home]


def test_signatures(home: Path) -> None:
    """Good for its payload and key only; a public key that is no point is no exception."""
    key = load_or_make_key(home)
    good = key.sign(b"payload")
    assert signature_is_good(key.public_key, good, b"payload")
    assert not signature_is_good(key.public_key, good, b"other")
    assert not signature_is_good("ff" * 32, good, b"payload")
