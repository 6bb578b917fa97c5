"""First version."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "graphs",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("blob", sa.String(length=255), nullable=False),
        sa.Column("created", sa.Float(precision=53), nullable=False),
        sa.Column("last_used", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "jobs",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("project", sa.String(length=63), nullable=False),
        sa.Column("id", sa.String(length=63), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=True),
        sa.Column("request_digest", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("time_limit", sa.Float(precision=53), nullable=False),
        sa.Column("token", sa.String(length=32), nullable=True),
        sa.Column("worker", sa.String(length=128), nullable=True),
        sa.Column("lease_until", sa.Float(precision=53), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("created", sa.Float(precision=53), nullable=False),
        sa.Column("started", sa.Float(precision=53), nullable=True),
        sa.Column("finished", sa.Float(precision=53), nullable=True),
        sa.Column("progress", sa.LargeBinary(), nullable=True),
        sa.Column("outcome", sa.LargeBinary(), nullable=True),
        sa.Column("last_sequence", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("project", "id"),
        sa.UniqueConstraint("project", "request_id"),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index("jobs_by_end", ["finished"], unique=False)
        batch_op.create_index("jobs_by_project", ["project", "number"], unique=False)
        batch_op.create_index("jobs_by_state", ["project", "state", "number"], unique=False)
        batch_op.create_index(
            "jobs_by_turn", ["state", sa.literal_column("priority DESC"), "number", "kind"], unique=False
        )

    op.create_table(
        "resources",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("collection", sa.String(length=16), nullable=False),
        sa.Column("project", sa.String(length=63), nullable=False),
        sa.Column("id", sa.String(length=63), nullable=False),
        sa.Column("message", sa.LargeBinary(), nullable=False),
        sa.Column("blob", sa.String(length=255), nullable=False),
        sa.Column("graph", sa.String(length=64), nullable=True),
        sa.Column("upload_id", sa.String(length=63), nullable=True),
        sa.Column("created", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("collection", "project", "id"),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("resources", schema=None) as batch_op:
        batch_op.create_index("resources_by_graph", ["graph"], unique=False)
        batch_op.create_index("resources_by_project", ["project", "collection", "number"], unique=False)
        batch_op.create_index("resources_by_upload", ["project", "upload_id"], unique=False)

    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=63), nullable=False),
        sa.Column("project", sa.String(length=63), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(precision=53), nullable=False),
        sa.Column("revoked", sa.Float(precision=53), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "events",
        sa.Column("job", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("time", sa.Float(precision=53), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("progress", sa.LargeBinary(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.number"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "sequence"),
    )


def downgrade() -> None:
    """Undo."""
    op.drop_table("events")
    op.drop_table("tokens")
    with op.batch_alter_table("resources", schema=None) as batch_op:
        batch_op.drop_index("resources_by_upload")
        batch_op.drop_index("resources_by_project")
        batch_op.drop_index("resources_by_graph")

    op.drop_table("resources")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index("jobs_by_turn")
        batch_op.drop_index("jobs_by_state")
        batch_op.drop_index("jobs_by_project")
        batch_op.drop_index("jobs_by_end")

    op.drop_table("jobs")
    op.drop_table("graphs")
