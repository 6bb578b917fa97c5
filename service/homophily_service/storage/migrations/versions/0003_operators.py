"""Tokens that expire, quotas, sizes, and which request a job came from."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op
from google.protobuf.message import DecodeError

from homophily_client._pb import dataset_pb2, embedding_pb2, model_pb2

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

# Numbers of fields never change, so what was stored can be read by any later version of these.
MESSAGES: dict[str, Any] = {
    "datasets": dataset_pb2.Dataset,
    "models": model_pb2.Model,
    "embeddings": embedding_pb2.Embedding,
}
ROWS_AT_ONCE = 1000


def upgrade() -> None:
    """Apply. Every column has a default, so that workers of the previous version keep working."""
    op.add_column("tokens", sa.Column("expires", sa.Float(precision=53)))
    op.add_column("jobs", sa.Column("origin", sa.String(length=128)))
    op.add_column("jobs", sa.Column("trace", sa.String(length=64)))
    for table in ("resources", "graphs"):
        op.add_column(table, sa.Column("bytes", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    op.create_table(
        "usage",
        sa.Column("project", sa.String(length=63), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("project", "day"),
    )
    _fill_bytes(op.get_bind())


def _fill_bytes(connection: sa.Connection) -> None:
    """Sizes that so far were only inside the messages."""
    resources = sa.table(
        "resources",
        sa.column("number", sa.BigInteger),
        sa.column("collection", sa.String),
        sa.column("message", sa.LargeBinary),
        sa.column("bytes", sa.BigInteger),
    )
    some = sa.select(resources.c.number, resources.c.collection, resources.c.message).order_by(resources.c.number)
    last = -1
    while rows := connection.execute(some.where(resources.c.number > last).limit(ROWS_AT_ONCE)).all():
        for number, collection, message in rows:
            last = number
            try:
                size = MESSAGES[collection].FromString(message).size_bytes
            except (KeyError, DecodeError):
                continue
            connection.execute(sa.update(resources).where(resources.c.number == number).values(bytes=size))


def downgrade() -> None:
    """Undo."""
    op.drop_table("usage")
    for table, column in (
        ("graphs", "bytes"),
        ("resources", "bytes"),
        ("jobs", "trace"),
        ("jobs", "origin"),
        ("tokens", "expires"),
    ):
        op.drop_column(table, column)
