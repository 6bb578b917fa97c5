"""Cells as MLflow runs, when a tracking URI is given: an experiment for each table, a run for each cell computed."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from benchmarks.tables.cells import Record


class Tracker:
    """Logs records under one parent run; without a URI it does nothing, and MLflow is not imported."""

    def __init__(self, uri: str | None, table: str) -> None:
        self.uri, self.table = uri, table
        self.stopped = False
        self._mlflow: Any = None

    def __enter__(self) -> Self:
        if self.uri is not None:
            import mlflow

            mlflow.set_tracking_uri(self.uri)
            mlflow.set_experiment(f"homophily {self.table}")
            mlflow.start_run(run_name=self.table)
            self._mlflow = mlflow
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        if self._mlflow is not None:
            self._mlflow.end_run("KILLED" if self.stopped or kind is not None else "FINISHED")

    def log(self, record: Record) -> None:
        """One cell: what it is as parameters, its figures as metrics."""
        if self._mlflow is None:
            return
        cell = record.cell
        numbers = {name: value for name, value in record.result.items() if isinstance(value, int | float)}
        # The places of a map's points are in the records, and too long for a tag.
        words = {
            n: str(value) for n, value in record.result.items() if n not in numbers and not isinstance(value, list)
        }
        setting = {name: str(value) for name, value in cell.setting.items()}
        with self._mlflow.start_run(run_name=f"{cell.data} {cell.method} {cell.seed}", nested=True):
            self._mlflow.log_params({"data": cell.data, "method": cell.method, "seed": cell.seed, **setting})
            self._mlflow.log_metrics({name: float(value) for name, value in numbers.items()})
            self._mlflow.set_tags(words)
