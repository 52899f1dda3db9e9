"""Jobs and their items."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Jobs and their items."""
    op.create_table(
        "jobs",
        sa.Column("key", KEY, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("done", sa.BigInteger, nullable=False),
        sa.Column("total", sa.BigInteger),
        sa.Column("stage", sa.Text),
        sa.Column("pace_s", sa.Float),
        sa.Column("paced_at", MOMENT),
        sa.Column("worker", sa.String(26)),
        sa.Column("leased_until", MOMENT),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("started_at", MOMENT),
        sa.Column("finished_at", MOMENT),
        sa.Column("error", sa.Text),
        sa.Column("summary", sa.JSON(none_as_null=True)),
        sa.PrimaryKeyConstraint("key", name="pk_jobs"),
        sa.UniqueConstraint("id", name="uq_jobs_id"),
        sa.UniqueConstraint("idempotency_key", name="uq_jobs_idempotency_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_status_key", "jobs", ["status", "key"])
    op.create_table(
        "job_items",
        sa.Column("job", KEY, nullable=False),
        sa.Column("position", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("worker", sa.String(26)),
        sa.Column("leased_until", MOMENT),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("rows", sa.JSON(none_as_null=True)),
        sa.Column("counts", sa.JSON(none_as_null=True)),
        sa.Column("notes", sa.JSON(none_as_null=True)),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint("job", "position", name="pk_job_items"),
        sa.ForeignKeyConstraint(["job"], ["jobs.key"], name="fk_job_items_job", ondelete="CASCADE"),
    )
    op.create_index("ix_job_items_job_state_position", "job_items", ["job", "state", "position"])
