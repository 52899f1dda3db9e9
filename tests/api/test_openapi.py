"""The OpenAPI document says what the service does."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from starlette.testclient import TestClient


@pytest.fixture
def document(client: TestClient) -> dict[str, Any]:
    made: dict[str, Any] = client.get("/openapi.json").json()
    return made


def conforms(document: dict[str, Any], name: str, value: Any) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    jsonschema_rs.Draft202012Validator(schema, validate_formats=True).validate(value)


def test_every_schema_has_an_example_that_fits(document: dict[str, Any]) -> None:
    for name, schema in document["components"]["schemas"].items():
        assert schema["examples"], name
        for example in schema["examples"]:
            conforms(document, name, example)


def test_no_example_is_left_over(document: dict[str, Any]) -> None:
    from scopegate.api.examples import EXAMPLES

    assert EXAMPLES.keys() <= document["components"]["schemas"].keys()


def test_every_operation_is_documented(document: dict[str, Any]) -> None:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert operation["description"], (method, path)
            assert ("requestBody" in operation) == (method in {"post", "put", "patch"}), (method, path)
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    kind = "application/json" if path.startswith("/v1/") else "application/problem+json"
                    assert list(response["content"]) == [kind], (method, path, status)
                elif status != "204":
                    assert response["content"], (method, path, status)


def test_examples_are_accepted(client: TestClient, document: dict[str, Any]) -> None:
    examples = {name: schema["examples"][0] for name, schema in document["components"]["schemas"].items()}
    requests = [
        ("POST", "/check", "CheckRequest", "Verdict"),
        ("POST", "/check/batch", "BatchRequest", "BatchResult"),
        ("POST", "/answer", "CheckRequest", "Answer"),
        ("POST", "/v1/chat/completions", "ChatRequest", "ChatCompletion"),
        ("PUT", "/scopes/examples", "ScopeChange", "ScopeBody"),
        ("POST", "/scopes/examples/facts", "FactsRequest", "Added"),
        ("POST", "/scopes/examples/documents", "DocumentsRequest", "Split"),
    ]
    for method, path, sent, received in requests:
        answer = client.request(method, path, json=examples[sent])
        assert answer.is_success, answer.text
        conforms(document, received, answer.json())
    listed = [
        ("/scopes", "Page_ScopeBody_"),
        ("/scopes/examples/facts", "Page_Fact_"),
        ("/livez", "Health"),
        ("/readyz", "Readiness"),
        ("/nowhere", "Problem"),
        ("/v1/models", "ModelList"),
        ("/v1/nowhere", "OpenAIError"),
    ]
    for path, received in listed:
        conforms(document, received, client.get(path).json())


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"question": "a", "messages": [{"role": "user", "content": "b"}]},
        {"messages": [{"role": "assistant", "content": "b"}]},
        {"question": " "},
        {"question": "a\u0000"},
        {"question": "a", "policy": {"alpha": 0}},
        {"question": "a", "policy": {"gates": ["hard", "hard"]}},
        {"question": "a", "beta": 1},
    ],
)
def test_the_schema_refuses_what_the_service_refuses(
    client: TestClient, document: dict[str, Any], request_: dict[str, Any]
) -> None:
    with pytest.raises(jsonschema_rs.ValidationError):
        conforms(document, "CheckRequest", request_)
    assert client.post("/check", json=request_).status_code == 422


def test_the_page_for_people_needs_no_network(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.status_code == 200
    assert "//" not in page.text.replace("// ", "")
    for asset in ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png"):
        assert f"docs/{asset}" in page.text
        assert client.get(f"/docs/{asset}").status_code == 200
    assert client.get("/docs/core.py").status_code == 422
