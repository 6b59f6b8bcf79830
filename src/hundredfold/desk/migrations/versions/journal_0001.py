"""The journal."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the journal and its indices."""
    op.create_table(
        "journal",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("request_id", sa.String(64)),
        sa.Column("rider", sa.String(64)),
        sa.Column("data", sa.JSON, nullable=False),
    )
    op.create_index("journal_day", "journal", ["day", "seq"])
    op.create_index("journal_request", "journal", ["request_id"])
    op.create_index("journal_rider", "journal", ["rider", "seq"])
    op.create_index("journal_kind", "journal", ["kind", "seq"])


def downgrade() -> None:
    """Remove the journal."""
    op.drop_table("journal")
