"""The tables of jobs, beside those of knowledge."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
)

from scopegate.knowledge.schema import Key, Moment, metadata

# digest is of what was asked for. total is null until the job is started. done counts the finished items, and version
# grows with all that a listener sees. worker and leased_until: who starts or finishes the job just now; attempts counts
# those leases, but for what was given back. pace_s is how long passed lately from one item's end to the next's,
# paced_at when the last one ended.
jobs = Table(
    "jobs",
    metadata,
    Column("key", Key, primary_key=True, autoincrement=True),
    Column("id", String(26), nullable=False, unique=True),
    Column("kind", String(16), nullable=False),
    Column("status", String(16), nullable=False),
    Column("spec", JSON, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("idempotency_key", String(255), unique=True),
    Column("version", BigInteger, nullable=False),
    Column("done", BigInteger, nullable=False),
    Column("total", BigInteger),
    Column("stage", Text),
    Column("pace_s", Float),
    Column("paced_at", Moment),
    Column("worker", String(26)),
    Column("leased_until", Moment),
    Column("attempts", Integer, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("started_at", Moment),
    Column("finished_at", Moment),
    Column("error", Text),
    Column("summary", JSON(none_as_null=True)),
    Index(None, "status", "key"),
    sqlite_autoincrement=True,
)

# state: waiting, leased, done. attempts counts the leases that were not given back. error: why the item failed, in a
# sentence.
items = Table(
    "job_items",
    metadata,
    Column("job", Key, ForeignKey("jobs.key", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("key", Text, nullable=False),
    Column("body", JSON, nullable=False),
    Column("state", String(8), nullable=False),
    Column("worker", String(26)),
    Column("leased_until", Moment),
    Column("attempts", Integer, nullable=False),
    Column("rows", JSON(none_as_null=True)),
    Column("counts", JSON(none_as_null=True)),
    Column("notes", JSON(none_as_null=True)),
    Column("error", Text),
    Index(None, "job", "state", "position"),
)
