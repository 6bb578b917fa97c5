"""Runs of deleted jobs, which the tracker has yet to end; and where models are registered."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    """Apply. The column may be empty, so that workers of the previous version keep working."""
    op.add_column("jobs", sa.Column("registered_version", sa.Text()))
    op.create_table(
        "runs_to_end",
        sa.Column("run", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("finished", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("run"),
    )


def downgrade() -> None:
    """Undo."""
    op.drop_table("runs_to_end")
    op.drop_column("jobs", "registered_version")
