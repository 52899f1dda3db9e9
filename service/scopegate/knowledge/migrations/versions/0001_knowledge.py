"""Scopes, facts with provenances, documents, tombstones."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Scopes, facts with provenances, documents, tombstones."""
    op.create_table(
        "scopes",
        sa.Column("key", KEY, autoincrement=True, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("incarnation", sa.String(26), nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("forgotten_revision", sa.BigInteger, nullable=False),
        sa.Column("facts", sa.BigInteger, nullable=False),
        sa.Column("documents", sa.BigInteger, nullable=False),
        sa.Column("embedder", sa.String(200), nullable=False),
        sa.Column("policy", sa.JSON, nullable=False),
        sa.Column("overridable", sa.JSON(none_as_null=True)),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_scopes"),
        sa.UniqueConstraint("name", name="uq_scopes_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "facts",
        sa.Column("key", KEY, autoincrement=True, nullable=False),
        sa.Column("scope", KEY, nullable=False),
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("confidence", sa.Float, nullable=False),
        sa.Column("source", sa.Text),
        sa.Column("metadata", sa.JSON, nullable=False),
        sa.Column("vector", sa.LargeBinary, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_facts"),
        sa.ForeignKeyConstraint(["scope"], ["scopes.key"], name="fk_facts_scope", ondelete="CASCADE"),
        sa.UniqueConstraint("scope", "id", name="uq_facts_scope_id"),
        sa.UniqueConstraint("scope", "digest", name="uq_facts_scope_digest"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_facts_scope_revision", "facts", ["scope", "revision"])
    op.create_index("ix_facts_scope_key", "facts", ["scope", "key"])
    op.create_table(
        "provenances",
        sa.Column("key", KEY, autoincrement=True, nullable=False),
        sa.Column("fact", KEY, nullable=False),
        sa.Column("scope", KEY, nullable=False),
        sa.Column("origin", sa.String(16), nullable=False),
        sa.Column("source", sa.Text),
        sa.Column("document_id", sa.String(256)),
        sa.Column("confidence", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_provenances"),
        sa.ForeignKeyConstraint(["fact"], ["facts.key"], name="fk_provenances_fact", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["scope"], ["scopes.key"], name="fk_provenances_scope", ondelete="CASCADE"),
    )
    op.create_index("ix_provenances_fact", "provenances", ["fact"])
    op.create_index("ix_provenances_scope_document_id", "provenances", ["scope", "document_id"])
    op.create_table(
        "documents",
        sa.Column("scope", KEY, nullable=False),
        sa.Column("id", sa.String(256), nullable=False),
        sa.Column("title", sa.Text),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("source", sa.Text),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("scope", "id", name="pk_documents"),
        sa.ForeignKeyConstraint(["scope"], ["scopes.key"], name="fk_documents_scope", ondelete="CASCADE"),
    )
    op.create_table(
        "tombstones",
        sa.Column("fact", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("scope", KEY, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("removed_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("fact", name="pk_tombstones"),
        sa.ForeignKeyConstraint(["scope"], ["scopes.key"], name="fk_tombstones_scope", ondelete="CASCADE"),
    )
    op.create_index("ix_tombstones_scope_revision", "tombstones", ["scope", "revision"])
