"""The service against its own OpenAPI document: no 5xx, every response as documented (Schemathesis)."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.conftest import FERRIES, Server

CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
]


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    server = Server(tmp_path_factory.mktemp("contract")).start()
    server.client.post("/scopes/default/facts", json={"facts": FERRIES}).raise_for_status()
    yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    assert server.stop() == 0


schema = schemathesis.pytest.from_fixture("contract")


@schema.parametrize()
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_response_is_as_documented(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=CHECKS)
