"""Schema migrations, run by the store when it opens (Alembic)."""
