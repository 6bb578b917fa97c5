"""Jobs that belong to others, and their tracking runs."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    """Apply."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("jobs", sa.Column("parent", number))
    op.add_column("jobs", sa.Column("tracking_run", sa.String(64)))
    op.add_column("jobs", sa.Column("tracking_url", sa.Text()))
    # What ended before runs were tracked stays as it is.
    op.add_column("jobs", sa.Column("untracked", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_index("jobs_by_parent", "jobs", ["parent", "state"])
    untracked = sa.text("untracked")
    op.create_index("jobs_untracked", "jobs", ["number"], sqlite_where=untracked, postgresql_where=untracked)


def downgrade() -> None:
    """Undo."""
    op.drop_index("jobs_untracked", "jobs")
    op.drop_index("jobs_by_parent", "jobs")
    for column in ("untracked", "tracking_url", "tracking_run", "parent"):
        op.drop_column("jobs", column)
