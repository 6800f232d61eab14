"""The stand-in `metadata` as Google's."""

from __future__ import annotations

import pytest
from tests.fakes.asgi import Client, Recorded, Reply, context

from belljar.network.stand_ins import metadata

ROOT = "/computeMetadata/v1"


@pytest.fixture
def record() -> Recorded:
    """What is recorded."""
    return Recorded()


@pytest.fixture
def cloud(record: Recorded) -> Client:
    """A server."""
    return Client(
        metadata.make(
            context(
                {"cloud": "gcp", "data": {f"{ROOT}/instance/attributes/startup-script": "#!"}},
                record=record,
            )
        )
    )


def ask(cloud: Client, path: str) -> Reply:
    """A request with the header that is demanded."""
    reply = cloud.get(ROOT + path, metadata_flavor="Google")
    assert reply.header("metadata-flavor") == "Google"
    return reply


def test_the_header_is_demanded(cloud: Client) -> None:
    """Without `Metadata-Flavor: Google`, or through a proxy, 403; nothing can be written."""
    assert cloud.get(f"{ROOT}/instance/id").status == 403
    assert (
        cloud.get(f"{ROOT}/instance/id", metadata_flavor="Google", x_forwarded_for="1.1.1.1").status
        == 403
    )
    assert (
        cloud.ask("PUT", f"{ROOT}/instance/id", headers={"metadata-flavor": "Google"}).status == 405
    )
    assert cloud.get("/").text == "computeMetadata/\n"


def test_values_and_listings(cloud: Client) -> None:
    """A value is text; a directory without its slash leads to it; `recursive=true` is JSON; an
    author's path is there."""
    assert ask(cloud, "/instance/id").text.isdigit()
    assert "machine-type\n" in ask(cloud, "/instance/").text
    assert "network-interfaces/\n" in ask(cloud, "/instance/").text
    assert (ask(cloud, "/instance").status, ask(cloud, "/instance").header("location")) == (
        301,
        f"http://shop.example{ROOT}/instance/",
    )
    assert ask(cloud, "/instance/network-interfaces/0/ip").text.startswith("172.31.")
    assert ask(cloud, "/instance/attributes/startup-script").text == "#!"
    assert ask(cloud, "/instance/network-interfaces/9/ip").status == 404
    assert ask(cloud, "/instance/zone?alt=json").json.startswith("projects/")
    assert ask(cloud, "/project/project-id").text.endswith("-prod")


def test_tokens_are_recorded_and_never_in_a_recursive_answer(
    cloud: Client, record: Recorded
) -> None:
    """A token is an attempt; reading everything shows none; an identity needs an audience and
    quotes it."""
    whole = ask(cloud, "/instance/?recursive=true")
    assert "ya29" not in whole.text
    assert record.attempts() == []
    token = ask(cloud, "/instance/service-accounts/default/token").json
    assert token["access_token"].startswith("ya29.c.")
    assert ask(cloud, "/instance/service-accounts/default/identity").status == 400
    assert ask(cloud, "/instance/service-accounts/default/identity?audience=x").text.count(".") == 2
    assert record.attempts() == ["credentials", "credentials"]
