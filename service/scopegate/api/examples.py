"""An example for every schema of the OpenAPI document, by the schema's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FACT_ID = "01KB3YQ4Z8M2N5P7R9T1V3X5Z7"
_TIME = "2026-11-20T09:30:00Z"
_TEXT = "The night ferry to Harwick leaves from pier 4 at 22:15."

_PASSAGE = {
    "id": "timetable",
    "text": "The night ferry to Harwick leaves from pier 4. It does not sail on Sundays.",
    "source": "timetable.pdf",
    "confidence": 1.0,
}
_POLICY = {"alpha": 1.1, "k": 4, "gates": ["hard", "probe"], "probe_threshold": 0.5, "mode": "enforce"}
_CHECK = {
    "question": "Which pier does the ferry to Harwick leave from?",
    "scope": "default",
    "policy": {"k": 4},
    "explain": False,
    "deadline_ms": 2000,
}
_PROVENANCE = {"origin": "document", "source": "timetable.pdf", "document_id": "timetable", "confidence": 1.0}
_FACT = {
    "id": _FACT_ID,
    "text": _TEXT,
    "confidence": 1.0,
    "provenances": [_PROVENANCE],
    "metadata": {"season": "winter"},
    "created_at": _TIME,
    "updated_at": _TIME,
}
_NEW_FACT = {"text": _TEXT, "confidence": 0.9, "source": "harbour office", "metadata": {"season": "winter"}}
_DOCUMENT = {
    "id": "timetable",
    "title": "Winter timetable",
    "text": f"{_TEXT} It does not sail on Sundays.",
    "source": "timetable.pdf",
}
_EVIDENCE = {
    "id": _FACT_ID,
    "text": _TEXT,
    "confidence": 1.0,
    "distance": 0.31,
    "ratio": 0.31,
    "source": "timetable.pdf",
}
_HARD = {
    "gate": "hard",
    "passed": True,
    "score": 0.31,
    "threshold": 1.1,
    "status": "ok",
    "elapsed_ms": 2.1,
    "detail": {"fact_id": _FACT_ID},
}
_PROBE = {
    "gate": "probe",
    "passed": True,
    "score": 0.93,
    "threshold": 0.5,
    "status": "ok",
    "elapsed_ms": 1.2,
    "detail": {},
}
_SPAN = {"start": 27, "end": 34, "text": "Norwich"}
_CONFUSION = {"type": "not_mentioned", "spans": [_SPAN], "explanation": None}
_VERDICT = {
    "id": "01KB3YR0A2C4E6G8J0M2P4R6T8",
    "decision": "ANSWERABLE",
    "would_refuse": False,
    "refused_by": None,
    "reason": "A fact in scope 'default' is close enough: S/C 0.31, the threshold is 1.1.",
    "confusion": None,
    "gates": [_HARD, _PROBE],
    "evidence": [_EVIDENCE],
    "scope": "default",
    "revision": 3,
}
_SOURCE = {
    "id": "news_1",
    "title": "Harwick's new pier",
    "text": "The harbour office opened pier 4 in May. The night ferry to Harwick leaves from it.",
    "topic": "news",
}
_PROGRESS = {"done": 12, "total": 45, "stage": "recovering claims", "remaining_s": 84.5}
_JOB = {
    "id": "01KB3YT5D1F3H5K7N9Q1S3V5X7",
    "kind": "generate",
    "status": "running",
    "progress": _PROGRESS,
    "created_at": _TIME,
    "started_at": _TIME,
    "finished_at": None,
    "error": None,
    "summary": None,
}
_PROBLEM = {
    "type": "urn:scopegate:invalid",
    "title": "Invalid",
    "status": 422,
    "detail": "the request does not fit its schema",
    "errors": [{"loc": ["body", "policy", "k"], "msg": "Input should be greater than or equal to 1"}],
}
_EFFECTIVE = {
    "alpha": 1.0,
    "k": 4,
    "gates": ["hard", "probe"],
    "probe_threshold": 0.5,
    "votes": 1,
    "mode": "enforce",
    "on_error": "refuse",
}
_SCOPE = {
    "name": "ferries",
    "policy": {"alpha": 1.0},
    "effective_policy": _EFFECTIVE,
    "overridable": ["k"],
    "embedder": "minilm-l6-int8@0123456789ab",
    "facts": 120,
    "documents": 2,
    "revision": 3,
    "created_at": _TIME,
    "updated_at": _TIME,
}

_LLM: Mapping[str, Any] = {
    "roles": ["answerer", "judge", "generator"],
    "model": "mistral-small",
    "capabilities": {
        "json_schema": True,
        "token_logprobs": True,
        "top_logprobs": True,
        "prefill": True,
        "several": True,
        "label_ids": True,
        "probe": True,
        "probe_fault": None,
    },
}
_ANSWER = {
    "id": "01KB3YS0A2C4E6G8J0M2P4R6T8",
    "decision": "ANSWER",
    "answer": _TEXT,
    "reason": "The sentence names the pier of the ferry to Harwick.",
    "refusal": None,
    "evidence": [_EVIDENCE],
    "verdict": _VERDICT,
    "model": "extractive",
}
_QUESTION_TURN = {"role": "user", "content": "Which pier does the ferry to Harwick leave from?"}
_TOKENS = {"prompt_tokens": 420, "completion_tokens": 31, "total_tokens": 451}
_ASSISTANT = {"role": "assistant", "content": _TEXT, "refusal": None}
_CHOICE = {"index": 0, "message": _ASSISTANT, "logprobs": None, "finish_reason": "stop"}
_MODEL = {"id": "scopegate/default", "created": 1795167000, "object": "model", "owned_by": "scopegate"}
_OPENAI_ERROR = {
    "message": "there is no scope 'norwich'",
    "type": "invalid_request_error",
    "code": "model_not_found",
    "param": None,
}

_LABELLED = {
    "question": "Which pier does the ferry to Norwich leave from?",
    "answerable": False,
    "passages": [_PASSAGE],
    "group": "timetable",
}
_ON_DOCUMENT = {
    "question": "Who commands the ferry to Harwick?",
    "document": _TEXT,
    "document_id": "timetable",
    "topic": "travel",
    "in_scope": False,
}

EXAMPLES: Mapping[str, Any] = {
    "Added": {"added": 1, "duplicates": 0, "ids": [_FACT_ID], "revision": 3},
    "Answer": _ANSWER,
    "AssistantMessage": _ASSISTANT,
    "BatchRequest": {"items": [_CHECK]},
    "BatchResult": {"results": [_VERDICT, _PROBLEM]},
    "CalibrateRequest": {"questions": [_LABELLED], "max_wrong": 0.05, "delta": 0.1, "apply": False},
    "CalibrationQuestion": _LABELLED,
    "ChatCompletion": {
        "id": "chatcmpl-01KB3YT0A2C4E6G8J0M2P4R6T8",
        "object": "chat.completion",
        "created": 1795167000,
        "model": "scopegate/default",
        "system_fingerprint": "scopegate-0.1.0",
        "choices": [_CHOICE],
        "usage": _TOKENS,
        "scopegate": _ANSWER,
    },
    "ChatMessage": _QUESTION_TURN,
    "ChatRequest": {
        "model": "scopegate/default",
        "messages": [_QUESTION_TURN],
        "temperature": 0.2,
        "scopegate": {"policy": {"k": 4}},
    },
    "AcceptRequest": {"ids": ["batch_1_2", "batch_1_5"]},
    "Accepted": {"accepted": 2, "merged": 0, "added": 2, "duplicates": 0, "revision": 5},
    "AnswerRequest": _CHECK,
    "CheckRequest": _CHECK,
    "Choice": _CHOICE,
    "Confusion": _CONFUSION,
    "ContentPart": {"type": "text", "text": "Which pier does the ferry to Harwick leave from?"},
    "DocumentIn": _DOCUMENT,
    "DocumentsRequest": {"documents": [_DOCUMENT]},
    "EnrichRequest": {
        "seed_questions": ["How long does the ferry to Harwick take?"],
        "count": 100,
        "min_confidence": 0.7,
        "review": True,
    },
    "EvaluateOptions": {"retrievers": ["sentences"], "in_scope": True},
    "EvaluateRequest": {"task": "detection", "dataset": [_ON_DOCUMENT], "options": {"by": ["gates"]}},
    "Evidence": _EVIDENCE,
    "Fact": _FACT,
    "FactChange": {"text": _TEXT, "confidence": 0.8},
    "FactIn": _NEW_FACT,
    "FactsRequest": {"facts": [_NEW_FACT]},
    "FieldError": _PROBLEM["errors"][0],  # type: ignore[index]
    "GateResult": _HARD,
    "GenerateRequest": {"documents": [_SOURCE], "facts_per_document": 10, "rounds": 3, "votes": 3, "seed": 7},
    "Health": {"status": "alive"},
    "Job": _JOB,
    "JobProgress": _PROGRESS,
    "Readiness": {"status": "ready", "llms": [_LLM]},
    "Message": _QUESTION_TURN,
    "ModelCard": _MODEL,
    "ModelList": {"object": "list", "data": [_MODEL]},
    "OpenAIError": {"error": _OPENAI_ERROR},
    "OpenAIErrorDetail": _OPENAI_ERROR,
    "Page_Fact_": {"items": [_FACT], "next_cursor": None},
    "Page_Job_": {"items": [_JOB], "next_cursor": None},
    "Page_ScopeBody_": {"items": [_SCOPE], "next_cursor": None},
    "PassageIn": _PASSAGE,
    "Policy": _EFFECTIVE,
    "PolicyFields": _POLICY,
    "Problem": _PROBLEM,
    "Provenance": _PROVENANCE,
    "ProvenanceIn": _PROVENANCE,
    "ScopeBody": _SCOPE,
    "ScopeChange": {"policy": {"alpha": 1.0}, "overridable": ["k"]},
    "SourceDocument": _SOURCE,
    "Span": _SPAN,
    "Split": {
        "documents": 1,
        "sentences": 2,
        "added": 2,
        "removed": 0,
        "ids": [_FACT_ID, "01KB3YQ4Z9A1B2C3D4E5F6G7H8"],
        "revision": 4,
    },
    "StreamOptions": {"include_usage": True},
    "Terms": {"policy": {"k": 4}, "deadline_ms": 2000},
    "TokenUsage": _TOKENS,
    "Verdict": _VERDICT,
}
