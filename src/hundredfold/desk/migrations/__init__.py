"""Migrations of the desk's database (Alembic)."""
