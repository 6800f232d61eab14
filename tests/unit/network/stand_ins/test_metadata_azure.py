"""The stand-in `metadata` as Azure's."""

from __future__ import annotations

import base64
import json

import pytest
from tests.fakes.asgi import Client, Recorded, Reply, context

from belljar.network.stand_ins import metadata

VERSION = "api-version=2021-02-01"


@pytest.fixture
def record() -> Recorded:
    """What is recorded."""
    return Recorded()


@pytest.fixture
def cloud(record: Recorded) -> Client:
    """A service."""
    return Client(
        metadata.make(
            context(
                {"cloud": "azure", "data": {"/metadata/instance/compute/userData": "aGk="}},
                record=record,
            )
        )
    )


def ask(cloud: Client, path: str) -> Reply:
    """A request with the header that is demanded."""
    return cloud.get(path, metadata="true")


def test_header_and_version_are_demanded(cloud: Client) -> None:
    """Without `Metadata: true`, through a proxy, or without a version: 400, the versions named
    where one is missing."""
    assert cloud.get(f"/metadata/instance?{VERSION}").status == 400
    assert (
        cloud.get(
            f"/metadata/instance?{VERSION}", metadata="true", x_forwarded_for="1.1.1.1"
        ).status
        == 400
    )
    assert len(ask(cloud, "/metadata/instance").json["newest-versions"]) == 3
    assert ask(cloud, "/metadata/instance?api-version=new").status == 400
    assert VERSION.partition("=")[2] in ask(cloud, "/metadata/versions").json["apiVersions"]
    assert (
        cloud.ask("POST", f"/metadata/instance?{VERSION}", headers={"metadata": "true"}).status
        == 405
    )


def test_the_document_and_its_leaves(cloud: Client) -> None:
    """The whole is JSON; a leaf is text where that is asked for."""
    whole = ask(cloud, f"/metadata/instance?{VERSION}").json
    leaf = ask(cloud, f"/metadata/instance/compute/vmId?{VERSION}&format=text")
    assert leaf.text == whole["compute"]["vmId"]
    assert ask(cloud, f"/metadata/instance/compute/vmId?{VERSION}").status == 400
    assert (
        ask(cloud, f"/metadata/instance/network/interface/0/macAddress?{VERSION}&format=text").text
        == whole["network"]["interface"][0]["macAddress"]
    )
    assert ask(cloud, f"/metadata/instance/compute/userData?{VERSION}").text == "aGk="
    assert ask(cloud, f"/metadata/instance/none?{VERSION}").status == 404
    assert ask(cloud, f"/other?{VERSION}").status == 404


def test_tokens_are_recorded(cloud: Client, record: Recorded) -> None:
    """A token names its resource and is an attempt; without a resource there is none."""
    assert (
        ask(cloud, f"/metadata/identity/oauth2/token?{VERSION}").json["error"] == "invalid_request"
    )
    assert record.attempts() == []
    token = ask(
        cloud, f"/metadata/identity/oauth2/token?{VERSION}&resource=https://vault.example"
    ).json
    claims = token["access_token"].split(".")[1]
    assert (
        json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["aud"]
        == "https://vault.example"
    )
    assert record.attempts() == ["credentials"]
