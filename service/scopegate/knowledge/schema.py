"""The tables. Truth lives here; everything else about a scope can be made again from them."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

# SQLite counts rows with INTEGER alone.
Key = BigInteger().with_variant(Integer, "sqlite")


class Moment(TypeDecorator[datetime]):
    """A point in time, stored in UTC; SQLite would forget the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To UTC."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """UTC again."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)

# revision grows by one with each write, under the row's lock. Removals up to forgotten_revision have lost their
# tombstones: a reader that is older must start anew. facts and documents count what it holds.
scopes = Table(
    "scopes",
    metadata,
    Column("key", Key, primary_key=True, autoincrement=True),
    Column("name", String(64), nullable=False, unique=True),
    Column("incarnation", String(26), nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("forgotten_revision", BigInteger, nullable=False),
    Column("facts", BigInteger, nullable=False),
    Column("documents", BigInteger, nullable=False),
    Column("embedder", String(200), nullable=False),
    Column("policy", JSON, nullable=False),
    Column("overridable", JSON(none_as_null=True)),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    sqlite_autoincrement=True,
)

# digest is of the normalised text. confidence and source are those of the best provenance. vector is float32, little
# endian, of the scope's embedder. Keys are never used twice, so that a view can tell facts apart by them.
facts = Table(
    "facts",
    metadata,
    Column("key", Key, primary_key=True, autoincrement=True),
    Column("scope", Key, ForeignKey("scopes.key", ondelete="CASCADE"), nullable=False),
    Column("id", String(128), nullable=False),
    Column("text", Text, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("confidence", Float, nullable=False),
    Column("source", Text),
    Column("metadata", JSON, nullable=False),
    Column("vector", LargeBinary, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    UniqueConstraint("scope", "id"),
    UniqueConstraint("scope", "digest"),
    Index(None, "scope", "revision"),
    Index(None, "scope", "key"),
    sqlite_autoincrement=True,
)

provenances = Table(
    "provenances",
    metadata,
    Column("key", Key, primary_key=True, autoincrement=True),
    Column("fact", Key, ForeignKey("facts.key", ondelete="CASCADE"), nullable=False, index=True),
    Column("scope", Key, ForeignKey("scopes.key", ondelete="CASCADE"), nullable=False),
    Column("origin", String(16), nullable=False),
    Column("source", Text),
    Column("document_id", String(256)),
    Column("confidence", Float, nullable=False),
    Index(None, "scope", "document_id"),
)

documents = Table(
    "documents",
    metadata,
    Column("scope", Key, ForeignKey("scopes.key", ondelete="CASCADE"), primary_key=True),
    Column("id", String(256), primary_key=True),
    Column("title", Text),
    Column("text", Text, nullable=False),
    Column("source", Text),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
)

tombstones = Table(
    "tombstones",
    metadata,
    Column("fact", BigInteger, primary_key=True, autoincrement=False),
    Column("scope", Key, ForeignKey("scopes.key", ondelete="CASCADE"), nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("removed_at", Moment, nullable=False),
    Index(None, "scope", "revision"),
)
