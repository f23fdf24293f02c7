"""What /openapi.json says holds: requests made from it, right and wrong, get only what it announces."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from openai.types.chat import ChatCompletion as SdkCompletion
from schemathesis import Case, checks
from schemathesis.checks import load_all_checks
from schemathesis.pytest.lazy import get_all_tests
from schemathesis.specs.openapi import checks as openapi_checks

from antiphon.server.app import create_app
from server.fake_engine import CharDetokeniser, FakeEngine

CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.negative_data_rejection,
]
APP = create_app(FakeEngine(), detokenisers=CharDetokeniser)
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)
RELAXED = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}
OPERATIONS = [found.ok().label for found in SCHEMA.get_all_operations()]


def fuzz(operation: str, num_examples: int) -> None:
    """Schemathesis' own marks make all requests in each process that collects tests, which takes seconds, and
    give all operations one name, of which pytest-xdist runs the first alone."""
    load_all_checks()
    (made,) = get_all_tests(
        schema=SCHEMA.include(name=operation),
        test_func=holds,
        settings=settings(max_examples=num_examples, **RELAXED),
        given_kwargs=None,
    )
    _, test = made.ok()
    test()


def holds(case: Case) -> None:
    case.call_and_validate(checks=CHECKS)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_little_of_everything(operation: str) -> None:
    fuzz(operation, 4)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_much_of_everything(operation: str) -> None:
    fuzz(operation, 300)


def test_every_route_describes_its_bodies_and_errors() -> None:
    document = APP.openapi()
    routes = {"/v1/chat/completions", "/v1/completions", "/v1/audio/speech", "/v1/audio/transcriptions"}
    assert routes <= set(document["paths"])
    for route in routes:
        post = document["paths"][route]["post"]
        assert post["requestBody"]["required"]
        assert {"200", "400", "401", "403", "404", "408", "413", "500", "503"} <= set(post["responses"])
        assert "Retry-After" in post["responses"]["503"]["headers"]
    told = document["paths"]["/v1/advisories"]["post"]["responses"]
    assert {"202", "404", "429", "503"} <= set(told)
    assert "200" not in told
    assert "Retry-After" in told["429"]["headers"]
    names = set(document["components"]["schemas"])
    assert {"ChatRequest", "ChatCompletion", "SpeechRequest", "Transcription", "Error"} <= names
    shown = set(document["components"]["schemas"]["ChatCompletion"]["properties"])
    assert shown <= set(SdkCompletion.model_fields), "nothing that the stock client does not know"
