"""Runs migrations on the connection that `storage.migrate` passes in."""

from __future__ import annotations

from alembic import context

from hundredfold.desk.storage import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
with context.begin_transaction():
    context.run_migrations()
