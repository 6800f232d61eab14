"""Patterns: credentials are found, examples and look-alikes are not."""

from __future__ import annotations

import pytest

from belljar.signals.patterns import Patterns

HIGH = "tR7mZp2LwT8vKq9xAb3cD4eF5gH6iJ0kLmN1oPqRsTuVwXyZ"


def classes(text: str) -> list[str]:
    """What is found in a text."""
    return [cls for _, _, cls in Patterns(()).find(text.encode())]


@pytest.mark.promise("5.7")
@pytest.mark.parametrize(
    ("text", "cls"),
    [
        ("aws_secret_access_key = " + HIGH[:40], "aws_secret"),
        ("ghp_" + HIGH[:36], "github_token"),
        ("password: " + HIGH[:18], "secret"),
        ("postgres://app:" + HIGH[:14] + "@db.corp:5432/x", "url_password"),
        (
            "-----BEGIN OPENSSH PRIVATE KEY-----\n" + HIGH + "\n-----END OPENSSH PRIVATE KEY-----",
            "private_key",
        ),
    ],
)
def test_a_credential_is_found(text: str, cls: str) -> None:
    """Each shape is found by itself, once, and as its class."""
    assert classes(f"x: {text} ;") == [cls]


@pytest.mark.promise("5.7")
@pytest.mark.parametrize(
    "text",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "password = os.environ['DATABASE_PASSWORD']",
        "token: get_token_from_vault",
        "PASS: gdb.cp/pr-1023.exp",
        "PASS: -Bsymbolic-functions",
        "PWD: '/Users/maciej'",
        "verdaccio-htpasswd: 13.0.0-next-8.29",
        "arn:aws:secretsmanager:us-east-1:123456789012:secret:MyTestDatabaseSecret-a1b2c3",
        "type Token = Stripe_.Apps.Secret;",
        "password = base64.b16encode(",
        "secret=$Base32String",
        "x-aws-ec2-metadata-token: AQAEAKm2Zp7LwT8vKq9xAb3cD4eF5gH6iJ0kLmN1oPqRsT==",
        "key=3f2504e0-4f89-11d3-9a0c-0305e82c3301"[4:],
        "da39a3ee5e6b4b0d3255bfef95601890afd80709",
        "-----BEGIN PUBLIC KEY-----",
    ],
)
def test_a_look_alike_passes(text: str) -> None:
    """Examples of documents, placeholders, code, identifiers and hashes are no credentials."""
    assert classes(f"x: {text} ;") == []


@pytest.mark.parametrize(
    "text",
    [
        b"e.ProgressToken=t.createMessageConnection=t.NullLogger=t.ConnectionOptions=void 0",
        b"n.keywordToken===102?n.name.escapedText===1:0",
        b"groups, next_token = self.mediapackagev2_backend.list_channel_groups(",
        b'"ClientRequestToken": "f4c94ed7-238d-4c46-93db-48cd62ec33b7"',
        b'"PrivateKey": "-----BEGIN DSA PRIVATE KEY-----<a very long private key string>-----END'
        b' DSA PRIVATE KEY-----"' + b"A" * 60,
        (
            b'border:["border-top","border-right","border-bottom","border-left","border-width","border-style"]'
            b" card top"
        ),
        b"can use this option. You can enable Auto Minor Version Upgrade when you first create",
        b'right":return["start","end"];case"bottom_left":return["end","start"];case"bottom_right":return["end","end"]',
    ],
)
def test_real_code_and_prose_are_no_credentials(text: bytes) -> None:
    """Lines of published packages that had the shape of one."""
    assert list(Patterns(()).find(text)) == []
