"""What keeps tenants apart and stored arrays safe: fair turns, pinned sources, graphs by project, a store's id."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    """Apply. Every column has a default, so that workers of the previous version keep working."""
    op.add_column("jobs", sa.Column("not_before", sa.Float(precision=53), nullable=False, server_default=sa.text("0")))
    op.add_column("jobs", sa.Column("source_digest", sa.String(length=64)))
    op.add_column("jobs", sa.Column("tracking_attempts", sa.Integer(), nullable=False, server_default=sa.text("0")))
    op.execute("UPDATE jobs SET not_before = created")
    op.drop_index("jobs_by_turn", "jobs")
    in_turn: list[str | sa.TextClause] = ["state", "project", sa.text("priority DESC"), "not_before", "number", "kind"]
    op.create_index("jobs_by_turn", "jobs", in_turn)
    op.add_column("graphs", sa.Column("project", sa.String(length=63)))
    op.create_index("graphs_by_project", "graphs", ["project"])
    # A graph that only one project uses belongs to that project; shared ones belong to none.
    op.execute(
        "UPDATE graphs SET project = (SELECT min(project) FROM resources WHERE graph = graphs.digest) "
        "WHERE (SELECT count(DISTINCT project) FROM resources WHERE graph = graphs.digest) = 1"
    )
    op.create_table(
        "turns",
        sa.Column("project", sa.String(length=63), nullable=False),
        sa.Column("last_started", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("project"),
    )
    op.create_table(
        "uploads",
        sa.Column("project", sa.String(length=63), nullable=False),
        sa.Column("id", sa.String(length=63), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("last_used", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("project", "id"),
    )
    op.create_table(
        "store",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def downgrade() -> None:
    """Undo."""
    for table in ("store", "uploads", "turns"):
        op.drop_table(table)
    op.drop_index("graphs_by_project", "graphs")
    op.drop_column("graphs", "project")
    op.drop_index("jobs_by_turn", "jobs")
    op.create_index("jobs_by_turn", "jobs", ["state", sa.text("priority DESC"), "number", "kind"])
    for column in ("tracking_attempts", "source_digest", "not_before"):
        op.drop_column("jobs", column)
