"""What a client of `belljar model serve` may ask."""

from __future__ import annotations

import h11
import pytest

from belljar.model.front import RefusedError, check_request

TOKEN = "the-token"


def request(*, token: str | None = TOKEN, host: str = "127.0.0.1:4000") -> h11.Request:
    """A request of a client."""
    headers = [("Host", host), *([("Authorization", f"Bearer {token}")] if token else [])]
    return h11.Request(method="POST", target="/v1/models", headers=headers)


@pytest.mark.parametrize("host", ["127.0.0.1:4000", "localhost", "localhost:4000"])
def test_the_api_is_open_to_whoever_has_the_token(host: str) -> None:
    """And to nobody else, also with a part of it."""
    check_request(request(host=host), TOKEN)
    for token in (None, "", "the-toke", "the-token2", "Bearer"):
        with pytest.raises(RefusedError) as caught:
            check_request(request(host=host, token=token), TOKEN)
        assert caught.value.args[0] == 401


@pytest.mark.parametrize("host", ["evil.test", "127.0.0.1.evil.test:80", "[::1]", "10.0.0.1", ""])
def test_a_name_that_a_page_made_mean_this_host_is_refused(host: str) -> None:
    """DNS rebinding, whatever the token."""
    with pytest.raises(RefusedError) as caught:
        check_request(request(host=host), TOKEN)
    assert caught.value.args[0] == 421
