"""What a client of `belljar model serve` may ask."""

from __future__ import annotations

import h11
import pytest

from belljar.model.front import RefusedError, checked_request

TOKEN = "the-token"


def request(target: str, *, method: str = "POST", token: str | None = TOKEN) -> h11.Request:
    """A request of a client."""
    headers = [("Host", "x"), *([("Authorization", f"Bearer {token}")] if token else [])]
    return h11.Request(method=method, target=target, headers=headers)


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/models", "/v1/completions"])
def test_the_api_is_open_to_whoever_has_the_token(target: str) -> None:
    """And to nobody else, also with a part of it."""
    checked_request(request(target), TOKEN)
    for token in (None, "", "the-toke", "the-token2"):
        with pytest.raises(RefusedError) as caught:
            checked_request(request(target, token=token), TOKEN)
        assert caught.value.status == 401


@pytest.mark.parametrize(
    "target",
    ["/", "/health", "/slots", "/v1", "/v1/", "/v1//x", "/v1/../slots", "/v1/%2e%2e/x", "/v1/x?y"],
)
def test_nothing_else_of_the_server_is_reached(target: str) -> None:
    """Its other endpoints, and what a server may resolve to them."""
    with pytest.raises(RefusedError) as caught:
        checked_request(request(target), TOKEN)
    assert caught.value.status == 404


def test_only_get_and_post_pass() -> None:
    """Whatever the path."""
    with pytest.raises(RefusedError):
        checked_request(request("/v1/models", method="DELETE"), TOKEN)
