"""The stand-in `metadata` as Amazon's."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.web import Client, Recorded, context

from belljar.network.stand_ins import metadata

TOKEN = "x-aws-ec2-metadata-token"
ROLES = "/latest/meta-data/iam/security-credentials/"


def cloud(settings: dict[str, Any] | None = None, **how: Any) -> Client:  # noqa: ANN401 - `context`'s
    return Client(metadata.make(context(settings, **how)), host="169.254.169.254")


def token(app: Client, ttl: str = "60") -> tuple[int, str]:
    reply = app.ask("PUT", "/latest/api/token", headers={f"{TOKEN}-ttl-seconds": ttl})
    return reply.status, reply.text


def test_credentials_are_recorded_before_they_go_out() -> None:
    """Reading a role's credentials is an attempt; they last six hours and are the range's own."""
    record = Recorded()
    app = cloud(record=record)
    role = app.get(ROLES).text
    assert record.attempts() == []
    found = app.get(ROLES + role).json
    assert record.attempts() == ["credentials"]
    assert found["Code"] == "Success"
    assert len(found["SecretAccessKey"]) == 40
    for name in ("SecretAccessKey", "AccessKeyId", "Token"):
        assert found[name][4:] not in json.dumps(record.events[0][0])
    other = cloud(seed=b"other")
    assert other.get(ROLES + other.get(ROLES).text).json["AccessKeyId"] != found["AccessKeyId"]


def test_tokens_of_version_two() -> None:
    """A token comes by PUT with a time to live from 1 to 21600 s."""
    app, path = cloud(), "/latest/meta-data/instance-id"

    def seen(word: str) -> int:
        return app.ask("GET", path, headers={TOKEN: word}).status

    assert (app.get(path).status, seen("made up")) == (200, 401)
    assert app.ask("PUT", "/latest/api/token").status == 400
    assert [token(app, ttl)[0] for ttl in ("0", "21601", "x", "²", "60")] == [*[400] * 4, 200]
    assert app.ask("GET", "/latest/api/token").status == 405
    made = token(app)[1]
    assert [seen(made), seen(made[:-4] + "AAA=")] == [200, 401]


@given(
    st.text(max_size=60),
    st.dictionaries(
        st.sampled_from([TOKEN, "x-forwarded-for"]), st.sampled_from(["true", "Google", "x"])
    ),
)
def test_any_path_is_answered(path: str, headers: dict[str, str]) -> None:
    """No path or header makes it fail."""
    below = quote(path, safe="/?&=", errors="replace")
    reply = cloud().ask("GET", f"/latest/meta-data/{below}", headers=headers)
    assert reply.status in (200, 301, 400, 401, 403, 404, 405)
