"""Every knob in one place, read from SCOPEGATE_* variables. What is loaded or called is the operator's alone."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from scopegate.domain import Mode, OnError


def models_dir() -> Path:
    """The shipped models: inside an installed package, or at the top of a checkout."""
    packaged = Path(__file__).parent / "models"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "models"


def prompts_dir() -> Path:
    """The shipped prompts: inside an installed package, or at the top of a checkout."""
    packaged = Path(__file__).parent / "prompts"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "prompts"


class Settings(BaseSettings):
    """The service's configuration; every field is also an environment variable, SCOPEGATE_ and its name in capitals."""

    model_config = SettingsConfigDict(env_prefix="SCOPEGATE_", extra="ignore", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    data_dir: Path = Path("data")
    database_url: str | None = Field(None, description="SQLAlchemy URL; SQLite in the data directory where unset")
    api_keys: str = Field("", description="comma-separated ROLE:KEY or ROLE:sha256:HEX; ROLE is check, write or admin")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    log_questions: bool = Field(False, description="log question texts; off, since people ask private things")

    # The policy of a scope that says nothing else. alpha is calibrated for the shipped embedder (its card says how).
    alpha: float = Field(1.2, gt=0, allow_inf_nan=False)
    k: int = Field(4, ge=1, le=100)
    mode: Mode = Mode.ENFORCE
    on_error: OnError = OnError.REFUSE
    deadline_ms: float = Field(2000, gt=0, le=60_000, allow_inf_nan=False)

    llm_url: str | None = Field(None, description="base URL of an OpenAI-compatible server, as http://host:8000/v1")
    llm_model: str | None = Field(None, description="its model; the first that it lists where unset")
    llm_api_key: SecretStr | None = None
    llm_judge_url: str | None = Field(None, description="another server for judging; llm_url where unset")
    llm_judge_model: str | None = None
    llm_judge_api_key: SecretStr | None = None
    llm_generator_url: str | None = Field(None, description="another server for generating; llm_url where unset")
    llm_generator_model: str | None = None
    llm_generator_api_key: SecretStr | None = None
    llm_deadline_ms: float = Field(
        30_000, gt=0, le=60_000, allow_inf_nan=False, description="deadline_ms of a request that an LLM takes part in"
    )
    llm_concurrency: int = Field(64, ge=1, description="requests in flight to one LLM server")
    llm_queue: int = Field(256, ge=0, description="requests that wait for one of those; one more is refused with 503")
    llm_retries: int = Field(
        2, ge=0, le=10, description="times that a failed connection, a 429, 502 or 503 is tried again"
    )
    llm_timeout_s: float = Field(
        120, gt=0, le=3600, description="most that one request to an LLM takes, whatever its caller's deadline"
    )
    llm_shape: Literal["constrained", "free"] = Field(
        "constrained", description="/answer decoded under a JSON schema, or as text that is parsed as it comes"
    )
    llm_method: Literal["basic", "two_shot", "reasoning"] = Field("basic", description="how the answerer is asked")
    llm_judging: Literal["reasoning", "fast"] = Field(
        "reasoning", description="the soft gate's way: a reasoned vote, or the logprobs of yes and no in one token"
    )

    embedder: str = Field(
        "minilm-l6-int8", description="a shipped model, or local:NAME for a sentence-transformers one"
    )
    embed_threads: int = Field(default_factory=lambda: min(os.cpu_count() or 1, 8), ge=1)
    embed_batch_tokens: int = Field(2048, ge=1, description="most padded tokens in one batch")
    embed_batch_wait_ms: float = Field(2.0, ge=0, le=100, description="how long texts in company wait for others")
    embed_queue: int = Field(2048, ge=1, description="most texts of requests that wait; one more is refused with 503")
    embed_cache: int = Field(20_000, ge=0, description="recent texts whose vectors are kept, about 2 kB each")
    read_queue: int = Field(256, ge=1, description="most pairs that wait for the reader; one more is refused with 503")
    probe: str = Field(
        "minilm-reader",
        description="a shipped model, minilm-reader or feature-probe; a probe's file, .json or .safetensors; or "
        "local:NAME for a checkpoint that reads",
    )

    index_exact_limit: int = Field(50_000, ge=0, description="facts up to which a scope is searched exhaustively")
    index_factory: str = Field("HNSW32", description="FAISS index of larger scopes; its distances must be exact")
    index_parameters: str = Field("efSearch=512", description="FAISS search parameters of larger scopes")
    tail_interval_s: float = Field(0.5, gt=0, le=60, description="how often other processes' writes are looked for")

    redis_url: str | None = Field(None, description="redis://host:6379/0, which tells workers of jobs; none is needed")
    job_items: int = Field(16, ge=0, description="items, as documents, that this process has in hand; 0 for no jobs")
    job_parallel: int = Field(8, ge=1, description="jobs that this process works on at once, in turns")
    job_llm_calls: int = Field(32, ge=1, description="requests of jobs in flight to all LLMs together")
    job_queue: int = Field(10_000, ge=1, description="unfinished jobs; one more is refused with 503")
    job_listeners: int = Field(1000, ge=1, description="listeners to jobs' events; one more is refused with 503")
    job_lease_s: float = Field(15, ge=0.5, le=3600, description="after so long, what a dead worker held is taken up")
    job_retention_days: float = Field(0, ge=0, description="ended jobs older than this are removed; 0 keeps them")

    max_requests: int = Field(256, ge=1, description="requests in flight; one more is refused with 503")
    max_sentences: int = Field(16_384, ge=1, description="sentences that the passages of one request may hold")
    max_body: int = Field(16 * 1024 * 1024, ge=1, description="bytes of a request's body")
    body_timeout_s: float = Field(30, gt=0, description="how long a request's body may take to arrive")
    shutdown_s: float = Field(30, ge=0, description="how long a stop waits for requests in flight")

    @property
    def database_file(self) -> Path:
        """SQLite's file, used where no URL is set."""
        return self.data_dir / "scopegate.db"

    @cached_property
    def sql_url(self) -> str:
        """The database's URL for SQLAlchemy's async engine."""
        if self.database_url is None:
            return f"sqlite+aiosqlite:///{self.database_file.absolute()}"
        scheme, separator, rest = self.database_url.partition("://")
        if scheme in {"postgres", "postgresql"}:
            return f"postgresql+asyncpg://{rest}"
        return f"sqlite+aiosqlite://{rest}" if scheme == "sqlite" else scheme + separator + rest
