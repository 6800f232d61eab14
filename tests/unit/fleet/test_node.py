"""What a node takes over from the head."""

from __future__ import annotations

from belljar.fleet.node import settings_of


def test_settings_go_along_and_secrets_and_choices_of_samples_do_not() -> None:
    """Options of the evaluation, but neither keys of the head nor which samples it selects: a
    unit's words name its own."""
    environ = {
        "INSPECT_EVAL_MAX_RETRIES": "3",
        "BELLJAR_POLICY": "low",
        "INSPECT_EVAL_LIMIT": "5",
        "INSPECT_EVAL_SAMPLE_ID": "a",
        "INSPECT_EVAL_SAMPLE_SHUFFLE": "1",
        "OPENAI_API_KEY": "secret",
        "RAY_AUTH_TOKEN": "secret",
    }
    kept = {name: environ[name] for name in ("INSPECT_EVAL_MAX_RETRIES", "BELLJAR_POLICY")}
    assert settings_of(environ) == kept
