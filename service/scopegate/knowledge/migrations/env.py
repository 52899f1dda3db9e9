"""Alembic's entry: migrates over the connection that the store hands it."""

from alembic import context

from scopegate.knowledge.schema import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True, transactional_ddl=False)
context.run_migrations()
