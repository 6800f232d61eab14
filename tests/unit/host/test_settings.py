"""The operator's settings: where they are, what they say, and that nothing later changes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import PolicyError
from belljar.host import settings
from belljar.host.settings import (
    Settings,
    Upstreams,
    environment_at_start,
    parse_settings,
    read_settings,
    resolve_here,
    within_settings,
)
from belljar.policy.limits import Risk
from belljar.policy.load import parse_policy

REAL = b"""belljar: 1
risk: low
network: {upstreams: [{host: a.example, ports: [443], methods: [GET], budget: 1MiB, reason: because it is so}]}
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The host's and the user's settings file, neither of them there."""
    config = tmp_path / "config"
    host, user = tmp_path / "etc/settings.yaml", config / "belljar/settings.yaml"
    for path in (host, user):
        path.parent.mkdir(parents=True)
    monkeypatch.setattr(settings, "HOST_FILE", host)
    monkeypatch.setattr(settings, "environment_at_start", lambda: {"XDG_CONFIG_HOME": str(config)})
    return host, user


@pytest.mark.promise("1.4")
def test_of_two_files_the_stricter_word_wins(files: tuple[Path, Path]) -> None:
    """Whichever says it; what neither says is left open; and who said it is known."""
    host, user = files
    assert read_settings() == Settings()
    user.write_text("upstreams: allow\nleast_risk: medium\n")
    assert (read_settings().upstreams, read_settings().least_risk) == (Upstreams.ALLOW, Risk.MEDIUM)
    host.write_text("upstreams: forbid\nleast_risk: low\n")
    both = read_settings()
    assert (both.upstreams, both.upstreams_from) == (Upstreams.FORBID, str(host))
    assert (both.least_risk, both.least_risk_from) == (Risk.MEDIUM, str(user))
    host.write_text("# nothing yet\n")
    assert read_settings().upstreams is Upstreams.ALLOW


@pytest.mark.promise("1.4")
@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("least_rsik: high\n", "s:1:1"),
        ("# a\nupstreams: maybe\n", "s:2:12"),
        ("upstreams: allow\nupstreams: forbid\n", "s:2:1"),
        ("upstreams:\n", "s:1:1"),
        ("a: [\n", "s:2:1"),
    ],
)
def test_what_settings_do_not_mean_is_refused_where_it_stands(text: str, where: str) -> None:
    """A setting that is misspelled would otherwise not hold."""
    with pytest.raises(PolicyError) as refused:
        parse_settings(text.encode(), source="s")
    assert refused.value.where == where
    assert refused.value.hint


@given(st.binary(max_size=80))
def test_any_bytes_are_settings_or_refused(text: bytes) -> None:
    """Never another error."""
    try:
        parse_settings(text, source="s")
    except PolicyError as error:
        assert error.where.startswith("s:")  # noqa: PT017 - either is right


def test_settings_that_can_not_be_read_are_no_permission(files: tuple[Path, Path]) -> None:
    """A loop of links and a directory: an error that names the path."""
    host, user = files
    host.symlink_to(host.name)
    for path in (host, user):
        with pytest.raises(PolicyError) as refused:
            read_settings()
        assert refused.value.where == str(path)
        host.unlink(missing_ok=True)
        user.mkdir(exist_ok=True)


@pytest.mark.promise("1.4")
def test_the_least_risk_holds_for_every_policy(files: tuple[Path, Path]) -> None:
    """Also for what the operator typed; nothing real at a risk that does not allow it."""
    host, _ = files
    assert str(resolve_here("low").policy.risk) == "low"
    host.write_text("least_risk: high\n")
    risks = {"low": "high", "high": "high", "critical": "critical", None: "high"}
    assert {name: str(resolve_here(name).policy.risk) for name in risks} == risks
    with pytest.raises(PolicyError, match="reaches nothing real") as refused:
        resolve_here(parse_policy(REAL, source="p.yaml", base=None))
    assert str(host) in refused.value.hint


def test_something_real_is_forbidden_to_all(files: tuple[Path, Path]) -> None:
    """The file that says so is named; `allow` forbids nothing, nor does no word."""
    loaded = parse_policy(REAL, source="p.yaml", base=None)
    assert within_settings(loaded, Settings()) is loaded
    assert within_settings(loaded, Settings(upstreams=Upstreams.ALLOW)) is loaded
    files[0].write_text("upstreams: forbid\n")
    with pytest.raises(PolicyError, match=r"a\.example.*etc/settings.yaml forbids"):
        resolve_here(loaded)


@pytest.mark.promise("2.7")
def test_what_a_process_makes_of_its_environment_is_not_what_it_was_started_with() -> None:
    """A `.env` file is no word of the operator's: variables are as at the start."""
    script = (
        "import os; from belljar.host.settings import environment_at_start as e;"
        "os.environ.update(NEW='1', OLD='2'); del os.environ['GONE'];"
        "print([e().get(name) for name in ('NEW', 'OLD', 'GONE')])"
    )
    environ = {**os.environ, "OLD": "1", "GONE": "1"}
    said = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "[None, '1', '1']"
    assert environment_at_start()["PATH"]
