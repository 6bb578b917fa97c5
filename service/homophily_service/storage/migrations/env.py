"""Alembic's entry: migrations run on the connection that :meth:`Database.migrate` holds."""

from alembic import context

from homophily_service.storage.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True, transactional_ddl=False)
context.run_migrations()
