"""The tables. A change here needs a migration in :mod:`homophily_service.storage.migrations`."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

metadata = MetaData()

# SQLite numbers rows itself only by INTEGER keys.
_Number = BigInteger().with_variant(Integer, "sqlite")
_ID = String(63)

jobs = Table(
    "jobs",
    metadata,
    Column("number", _Number, primary_key=True, autoincrement=True),
    Column("project", _ID, nullable=False),
    Column("id", _ID, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("request", LargeBinary, nullable=False),
    Column("request_id", String(128)),
    Column("request_digest", String(64), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("time_limit", Float(53), nullable=False),
    # The lease: the holder of the token may write until another worker takes the job over.
    Column("token", String(32)),
    Column("worker", String(128)),
    Column("lease_until", Float(53)),
    Column("cancel_requested", Boolean, nullable=False),
    Column("created", Float(53), nullable=False),
    Column("started", Float(53)),
    Column("finished", Float(53)),
    Column("progress", LargeBinary),
    # A serialised result of the job's kind, or a JobError.
    Column("outcome", LargeBinary),
    Column("last_sequence", Integer, nullable=False),
    # The job that waits for this one.
    Column("parent", _Number),
    # The tracking run, and whether it is behind.
    Column("tracking_run", String(64)),
    Column("tracking_url", Text),
    Column("untracked", Boolean, nullable=False, server_default=false()),
    # The call that submitted it: its x-request-id, and its place in a trace as a W3C traceparent.
    Column("origin", String(128)),
    Column("trace", String(64)),
    # When it may start, in seconds since 1970; of jobs of one priority, the earliest goes first.
    Column("not_before", Float(53), nullable=False, server_default=text("0")),
    # Digest of the dataset, model or embedding that it was submitted for, and its name.
    Column("source_digest", String(64)),
    Column("source", String(255)),
    # How often sending its tracking run was begun since the last success.
    Column("tracking_attempts", Integer, nullable=False, server_default=text("0")),
    # Where its model is registered: models:/{name}/{version}.
    Column("registered_version", Text),
    UniqueConstraint("project", "id"),
    UniqueConstraint("project", "request_id"),
    Index("jobs_by_parent", "parent", "state"),
    Index("jobs_by_project", "project", "number"),
    Index("jobs_by_state", "project", "state", "number"),
    Index("jobs_by_end", "finished"),
    sqlite_autoincrement=True,
)

# A project's next job is the first entry of this index whose kind is known.
Index(
    "jobs_by_turn", jobs.c.state, jobs.c.project, jobs.c.priority.desc(), jobs.c.not_before, jobs.c.number, jobs.c.kind
)
Index(
    "jobs_untracked",
    jobs.c.number,
    sqlite_where=jobs.c.untracked,
    postgresql_where=jobs.c.untracked,
)

# Tracking runs of jobs that were deleted before their end was sent: the state and the time with which each ended.
runs_to_end = Table(
    "runs_to_end",
    metadata,
    Column("run", String(64), primary_key=True),
    Column("state", String(16), nullable=False),
    Column("finished", Float(53), nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("job", _Number, ForeignKey(jobs.c.number, ondelete="CASCADE"), primary_key=True),
    Column("sequence", Integer, primary_key=True),
    Column("time", Float(53), nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("progress", LargeBinary),
    Column("message", Text, nullable=False),
)

# Datasets, models and embeddings: the message that Get answers, and where its arrays are.
resources = Table(
    "resources",
    metadata,
    Column("number", _Number, primary_key=True, autoincrement=True),
    Column("collection", String(16), nullable=False),
    Column("project", _ID, nullable=False),
    Column("id", _ID, nullable=False),
    Column("message", LargeBinary, nullable=False),
    Column("blob", String(255), nullable=False),
    # The graph of a model.
    Column("graph", String(64)),
    # The dataset of a model or an embedding.
    Column("dataset", String(255)),
    # The upload that made a dataset: if it is sent again, it is answered from here.
    Column("upload_id", _ID),
    Column("created", Float(53), nullable=False),
    Column("bytes", BigInteger, nullable=False, server_default=text("0")),
    UniqueConstraint("collection", "project", "id"),
    Index("resources_by_graph", "graph"),
    Index("resources_by_project", "project", "collection", "number"),
    Index("resources_by_upload", "project", "upload_id"),
    sqlite_autoincrement=True,
)

# Graphs are shared between the models of a project: the digest is of the project, the points and the parameters.
graphs = Table(
    "graphs",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("blob", String(255), nullable=False),
    Column("created", Float(53), nullable=False),
    Column("last_used", Float(53), nullable=False),
    # 0 for graphs that were built before sizes were recorded.
    Column("bytes", BigInteger, nullable=False, server_default=text("0")),
    # None for older graphs that several projects share.
    Column("project", _ID),
    Index("graphs_by_project", "project"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("project", _ID, nullable=False),
    # SHA-256 of the secret, which itself is shown once and kept nowhere.
    Column("digest", String(64), nullable=False, unique=True),
    Column("description", Text, nullable=False),
    Column("created", Float(53), nullable=False),
    Column("revoked", Float(53)),
    Column("expires", Float(53)),
)

# Jobs that a project submitted, by days since 1970, if their number is limited; the jobs themselves can be deleted.
usage = Table(
    "usage",
    metadata,
    Column("project", _ID, primary_key=True),
    Column("day", Integer, primary_key=True),
    Column("jobs", Integer, nullable=False),
)

# When a job of each project was last started: projects take turns.
turns = Table(
    "turns",
    metadata,
    Column("project", _ID, primary_key=True),
    Column("last_started", Float(53), nullable=False),
)

# Unfinished uploads and the bytes that each has reserved, which count towards the project's quota.
uploads = Table(
    "uploads",
    metadata,
    Column("project", _ID, primary_key=True),
    Column("id", _ID, primary_key=True),
    Column("bytes", BigInteger, nullable=False),
    Column("last_used", Float(53), nullable=False),
)

# One row: the identity of the store, which the blobs hold as well. The generation increases with every sweep.
store = Table(
    "store",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("generation", BigInteger, nullable=False),
)
