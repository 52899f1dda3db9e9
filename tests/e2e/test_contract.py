"""The service against its own OpenAPI document: no 5xx, every response as documented (Schemathesis)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CheckContext
from schemathesis.core.failures import Failure
from schemathesis.core.result import Ok
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.conftest import FERRIES, Server


def no_failure_of_the_service(_: CheckContext, response: Response, case: schemathesis.Case[Any]) -> None:
    """No 5xx, but for the 503 that the contract gives a revision that does not come."""
    if response.status_code >= 500 and not (_waits(case.body) and "did not reach revision" in response.text):
        raise Failure(operation=case.operation.label, title="Server error", message=response.text)


def _waits(body: Any) -> bool:
    return isinstance(body, dict) and ("min_revision" in body or _waits(body.get("scopegate")))


CHECKS = [
    no_failure_of_the_service,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
]
OPERATIONS = 28
# A request may wait for its revision as long as its deadline, a minute at most.
DEADLINE_S = 90
EXAMPLES = 25
NOTHING_TO_GET_WRONG = {"/livez", "/readyz"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("contract")).start()
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("mode", GenerationMode)
def test_every_response_is_as_documented(server: Server, mode: GenerationMode) -> None:
    """mode: requests that the document allows, and requests that it does not."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    assert len(operations) == OPERATIONS
    for operation in operations:
        if mode.is_negative and operation.path in NOTHING_TO_GET_WRONG:
            continue
        server.client.post("/scopes/default/facts", json={"facts": FERRIES}).raise_for_status()

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
        def conforms(case: schemathesis.Case[Any]) -> None:
            case.call_and_validate(checks=CHECKS, timeout=DEADLINE_S)

        conforms()
