"""Runs migrations inside the caller's connection (`app/manage.py`), under its lock."""

from alembic import context

from app.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
