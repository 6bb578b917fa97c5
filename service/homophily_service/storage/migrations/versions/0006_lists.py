"""What lists are filtered by: the dataset of models and embeddings, and the source of jobs."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

from homophily_client._pb import embedding_pb2, model_pb2

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

MESSAGES: dict[str, Any] = {"models": model_pb2.Model, "embeddings": embedding_pb2.Embedding}


def upgrade() -> None:
    """Apply. The columns may be empty, so that workers of the previous version keep working."""
    op.add_column("jobs", sa.Column("source", sa.String(length=255)))
    op.add_column("resources", sa.Column("dataset", sa.String(length=255)))
    resources = sa.table("resources", *map(sa.column, ("number", "collection", "message", "dataset")))
    connection = op.get_bind()
    of_kind = sa.select(resources.c.number, resources.c.collection).where(resources.c.collection.in_(MESSAGES))
    for number, collection in connection.execute(of_kind).all():
        here = resources.c.number == number
        message = connection.scalar(sa.select(resources.c.message).where(here))
        dataset = MESSAGES[collection].FromString(message).dataset
        if dataset:
            connection.execute(sa.update(resources).where(here).values(dataset=dataset))


def downgrade() -> None:
    """Undo."""
    op.drop_column("resources", "dataset")
    op.drop_column("jobs", "source")
