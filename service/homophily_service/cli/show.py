"""Formats the service's answers for people and for scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import numpy as np

from homophily_client import (
    ClientError,
    Dataset,
    DatasetSource,
    Embedding,
    Graph,
    Job,
    JobState,
    Model,
    Search,
    TableSchema,
)
from homophily_service.cli.runs import run_link
from homophily_service.cli.screen import percent, print_facts, print_status, size

_SHOWN_CLASSES = 12
_SHOWN_LINKS = 20
_SHOWN_COLUMNS = 12
_SHOWN_STEPS = 6
_PHASES = ("load", "search", "graph", "solve", "calibrate", "cluster", "save")


def plain(value: Any) -> Any:
    """A value as JSON types."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, ClientError):
        violations = [{"field": one.field, "description": one.description} for one in value.violations]
        return {
            "code": value.code.name,
            "reason": value.reason,
            "message": value.message,
            "violations": violations,
        }
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value


def short(name: str | None) -> str:
    """The id at the end of a name, which commands in the same project accept."""
    return "" if name is None else name.rpartition("/")[2]


def ago(moment: datetime) -> str:
    """How long ago something was, roughly."""
    seconds = max(0.0, (datetime.now(UTC) - moment).total_seconds())
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def clock(seconds: float) -> str:
    """A duration: 0:07, 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def took(job: Job) -> float | None:
    """Seconds of a job's last attempt, until now if it runs."""
    if job.start_time is None:
        return None
    end = job.finish_time or datetime.now(UTC)
    return round(max(0.0, (end - job.start_time).total_seconds()), 2)


def stage(job: Job) -> str:
    """The state of a job, in a few words."""
    if job.state == JobState.QUEUED and job.queue_position:
        return f"queued, {job.queue_position} before it"
    if job.state == JobState.FAILED and job.error is not None and job.error.reason:
        return f"failed: {job.error.reason}"
    if job.state == JobState.RUNNING and job.cancel_requested:
        return "running, cancelling"
    if job.state == JobState.RUNNING and job.progress is not None and job.progress.phase:
        steps = f" {job.progress.iteration}/{job.progress.max_iterations}" if job.progress.max_iterations else ""
        return f"running: {job.progress.phase}{steps}"
    return str(job.state)


def print_dataset(dataset: Dataset) -> None:
    """Print a dataset's facts."""
    kind = f"sparse (CSR), {dataset.dtype}" if dataset.is_sparse else f"dense, {dataset.dtype}"
    print_facts(
        {
            "dataset": short(dataset.name),
            "points": f"{dataset.points:,} of {dataset.dimensions:,} features, {kind}",
            **({} if dataset.schema is None else {"columns": _columns(dataset.schema)}),
            "size": size(dataset.size_bytes),
            "sha256": dataset.sha256,
            **({} if dataset.source is None else {"from": _files(dataset.source)}),
            "description": dataset.description,
        }
    )


def _files(source: DatasetSource) -> str:
    return f"{source.address}, {source.files:,} {'file' if source.files == 1 else 'files'}, {size(source.size_bytes)}"


def _columns(schema: TableSchema) -> str:
    listed = ", ".join(f"{column.name} ({column.kind})" for column in schema.columns[:_SHOWN_COLUMNS])
    more = f" and {len(schema.columns) - _SHOWN_COLUMNS} more" if len(schema.columns) > _SHOWN_COLUMNS else ""
    unused = f"; not used: {', '.join(schema.unused_columns[:_SHOWN_COLUMNS])}" if schema.unused_columns else ""
    return listed + more + unused


def print_model(model: Model, changed_points: int | None = None) -> None:
    """Print a model's facts, and its warnings on standard error."""
    print_facts(model_facts(model, changed_points))
    for warning in model.warnings:
        print_status(f"Warning: {warning}", "yellow")


def model_facts(model: Model, changed_points: int | None = None) -> dict[str, Any]:
    """Facts about a model, by name."""
    classes = ", ".join(map(str, model.classes[:_SHOWN_CLASSES]))
    more = ", …" if len(model.classes) > _SHOWN_CLASSES else ""
    facts: dict[str, Any] = {"model": short(model.name), "dataset": short(model.dataset)}
    if model.parent_model:
        facts["made from"] = short(model.parent_model)
    facts |= {
        "method": _parameters(model),
        "points": f"{model.points:,} of {model.dimensions:,} features, {model.labelled:,} labelled",
        "classes": f"{len(model.classes)}: {classes}{more}",
    }
    if model.class_shares:
        shown = zip(model.classes[:_SHOWN_CLASSES], model.class_shares, strict=False)
        shares = [f"{name} {percent(one.share)} ({percent(one.low)} to {percent(one.high)})" for name, one in shown]
        facts["class shares"] = ", ".join(shares) + more
    if changed_points is not None:
        facts["changed"] = f"the class of {changed_points:,} points"
    if model.error_rate is not None:
        facts["error rate"] = f"{percent(model.error_rate)} of the validation labels"
    if model.test is not None:
        facts["test error"] = f"{percent(model.test.error_rate)} of {_count(model.test.points, 'test label')}"
    tested = [(one.labelled, one.test_error) for one in model.label_steps if one.test_error is not None]
    if len(tested) > 1:
        shown_steps = [f"{percent(error)} with {labelled:,}" for labelled, error in tested[-_SHOWN_STEPS:]]
        facts["error by labels"] = ", ".join(shown_steps)
    if model.suspicious_labels:
        facts["suspicious"] = f"{_count(len(model.suspicious_labels), 'label')}; see homophily suspects"
    if model.search is not None:
        facts["search"] = search_facts(model.search)
    if model.preprocessing_steps:
        facts["prepared"] = " ".join(model.preprocessing_steps)
    facts["graph"] = _graph(model.graph)
    facts["solution"] = f"energy {model.energy:.6g}, {_count(model.iterations, 'step')}" + (
        f", {model.engine}" if model.engine else ""
    )
    facts["seconds"] = _seconds(model.seconds)
    facts["probabilities"] = model.calibrated
    facts["size"] = size(model.size_bytes)
    return facts


def print_embedding(embedding: Embedding) -> None:
    """Print an embedding's facts, and violated links and warnings on standard error."""
    print_facts(embedding_facts(embedding))
    links = embedding.links
    for kind, pairs, total in (
        ("must", links.listed_must, links.violated_must),
        ("cannot", links.listed_cannot, links.violated_cannot),
    ):
        if pairs:
            shown = ", ".join(f"{first}–{second}" for first, second in pairs[:_SHOWN_LINKS])
            print_status(f"Violated {kind}-links: {shown}{', …' if total > _SHOWN_LINKS else ''}", "yellow")
    for warning in embedding.warnings:
        print_status(f"Warning: {warning}", "yellow")


def embedding_facts(embedding: Embedding) -> dict[str, Any]:
    """Facts about an embedding, by name."""
    facts: dict[str, Any] = {"embedding": short(embedding.name), "dataset": short(embedding.dataset)}
    if embedding.parent_embedding:
        facts["made from"] = short(embedding.parent_embedding)
    elif embedding.model:
        facts["made from"] = f"the graph of model {short(embedding.model)}"
    given = {**embedding.solver_parameters, **embedding.graph_parameters}
    if given:
        facts["parameters"] = ", ".join(f"{name}={value}" for name, value in given.items())
    labelled = f", {embedding.labelled:,} labelled" if embedding.labelled else ""
    facts["points"] = f"{embedding.points:,} in {_count(embedding.components, 'dimension')}{labelled}"
    links = embedding.links
    for kind, total, violated in (
        ("must-links", links.must, links.violated_must),
        ("cannot-links", links.cannot, links.violated_cannot),
    ):
        facts[kind] = f"{total:,}, of which {violated:,} violated" if total else None
    if embedding.clusters:
        facts["clusters"] = (
            f"{embedding.clusters:,}; {_count(links.divided_must, 'must-link')} between them, "
            f"{_count(links.joined_cannot, 'cannot-link')} within one"
        )
    facts["graph"] = _graph(embedding.graph)
    facts["solution"] = f"energy {embedding.energy:.6g}, {_count(embedding.iterations, 'step')}, {embedding.engine}"
    facts["seconds"] = _seconds(embedding.seconds)
    facts["size"] = size(embedding.size_bytes)
    return facts


def print_job(job: Job) -> None:
    """Print a job's facts."""
    facts: dict[str, Any] = {
        "job": short(job.name),
        "kind": job.kind,
        "state": stage(job),
        "asked for": f"{job.create_time.astimezone():%Y-%m-%d %H:%M:%S}, {ago(job.create_time)}",
        "seconds": took(job),
        "attempt": f"{job.attempt} of {job.max_attempts}",
        "priority": job.priority,
        "time limit": f"{job.time_limit:g} s",
    }
    if job.progress is not None and not job.state.is_final:
        facts["progress"] = f"{100 * job.progress.fraction:.0f} %"
        facts["energy"] = job.progress.energy
    if job.error is not None:
        facts["error"] = job.error.message
    if job.model is not None:
        facts["model"] = short(job.model.name)
    if job.embedding is not None:
        facts["embedding"] = short(job.embedding.name)
    if job.registered_version:
        facts["registered as"] = job.registered_version
    if job.tracking_run:
        facts["tracking run"] = run_link(job) or job.tracking_run
    print_facts(facts)


def _parameters(model: Model) -> str:
    given = {**model.solver_parameters, **model.graph_parameters}
    method = str(given.pop("method", "err")).upper()
    return ", ".join([method, *(f"{name}={value}" for name, value in given.items())])


def search_facts(search: Search) -> str:
    """The error of the trial that was chosen, and the lowest of all, which the progress showed.

    They differ: a search also weighs the log-loss, and how settings nearby did.
    """
    tried = _count(len(search.trials), "trial")
    chosen = next((trial.error_rate for trial in search.trials if trial.number == search.best), None)
    if chosen is None:
        return tried
    errors = [one.error_rate for one in search.trials if one.error_rate is not None and not one.pruned]
    lowest = min(errors, default=chosen)
    aside = "the lowest of all" if chosen <= lowest else f"the lowest of all was {percent(lowest)}"
    return f"{tried}, the chosen one with {percent(chosen)} of the held-out labels wrong, {aside}"


def _graph(graph: Graph) -> str:
    return (
        f"{'reused' if graph.reused else 'built'}: {graph.edges:,} edges, recall {graph.recall:.4g}, "
        f"{_count(graph.components, 'component')}"
    )


def _seconds(by_phase: Mapping[str, float]) -> str:
    # Maps in protobuf have no order.
    ordered = sorted(by_phase.items(), key=lambda entry: _PHASES.index(entry[0]) if entry[0] in _PHASES else 99)
    phases = " · ".join(f"{phase} {seconds:.2f}" for phase, seconds in ordered)
    return f"{sum(by_phase.values()):.2f} ({phases})"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")
