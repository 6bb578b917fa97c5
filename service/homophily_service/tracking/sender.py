"""Sends records of jobs to MLflow. What was sent before is found again, so nothing is duplicated.

A job's run is found by its tag ``homophily.job``, a trial's by ``homophily.trial`` below it, a logged model and a
registered version by ``homophily.job``. A run is ended last, so one that has ended has everything.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import (
    Dataset,
    DatasetInput,
    InputTag,
    LoggedModelOutput,
    Metric,
    Param,
    Run,
    RunStatus,
    RunTag,
    ViewType,
)
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS

from homophily_client._pb import embedding_pb2, job_pb2, model_pb2
from homophily_client.names import DEFAULT_PROJECT
from homophily_service.contract import states
from homophily_service.contract.errors import DataLoss, NotFound
from homophily_service.runtime.settings import Settings
from homophily_service.storage.outbox import Outbox
from homophily_service.storage.records import JobRecord, RunToEnd
from homophily_service.storage.stores import Stores
from homophily_service.tracking.pictures import draw
from homophily_service.tracking.place import Place
from homophily_service.tracking.records import (
    LONGEST_VALUE,
    Data,
    Measure,
    Record,
    record_of,
    trial_measures,
    trial_parameters,
)
from homophily_service.tracking.registry import JOB_TAG, MODEL_TAG, registered_name
from homophily_service.tracking.tables import Columns, tables_of

_log = logging.getLogger(__name__)

STATUS = {states.SUCCEEDED: "FINISHED", states.FAILED: "FAILED", states.CANCELLED: "KILLED"}
# The most that MLflow accepts in one request.
_METRICS_AT_ONCE, _PARAMETERS_AT_ONCE = 500, 100
_LONGEST_DIGEST, _LONGEST_PARAMETER = 36, 500
# Decides which page MLflow shows first.
_EXPERIMENT = {"mlflow.experimentKind": "custom_model_development"}
# The name of the model in its run.
MODEL_NAME = "model"


class LeadershipLost(Exception):
    """Another tracker has taken over."""


class Sender:
    """A connection to MLflow, and what is known about the runs there."""

    def __init__(self, client: MlflowClient, settings: Settings, stores: Stores, is_held: Callable[[], bool]) -> None:
        self.client, self.settings, self.stores = client, settings, stores
        self.place, self.outbox = Place.of(settings), Outbox(stores.database)
        self._is_held = is_held
        self._experiments: dict[str, str] = {}
        # By running job: the last event that was sent, and the steps that its run has of each metric.
        self._sent: dict[int, int] = {}
        self._steps: dict[tuple[str, str], set[int]] = {}

    def answers(self) -> bool:
        """Whether MLflow answers at all; if it does, a failure is the job's."""
        try:
            self.client.search_experiments(max_results=1)
        except Exception:
            return False
        return True

    def send(self, job: JobRecord) -> None:
        """Bring a job's run up to date."""
        try:
            self._send(job)
        except BaseException:
            self.forget(job.number)
            raise

    def end(self, deleted: RunToEnd) -> None:
        """End the run of a job that was deleted before it was sent to its end."""
        try:
            self.client.set_terminated(deleted.run, STATUS[deleted.state], _milliseconds(deleted.finished))
        except MlflowException as error:
            if not _is_refusal(error):
                raise
            # Deleted, or in another MLflow.
            _log.warning("run %s of a deleted job cannot be ended: %s", deleted.run, error.message)

    def forget(self, number: int) -> None:
        """Forget what the run has, so that it is read again."""
        self._sent.pop(number, None)
        self._steps.clear()
        self._experiments.clear()

    def _send(self, job: JobRecord) -> None:
        ended = job.state in states.FINAL
        events = self.stores.queue.events_after(job.number, self._sent.get(job.number, 0))
        record = record_of(job, events, self.stores)
        run = self._run(job, record)
        if run is not None and not RunStatus.is_terminated(RunStatus.from_string(run.info.status)):
            self._describe(run, record)
            if ended:
                self._finish(run, job, record)
            elif run.info.status != "RUNNING":
                self.client.update_run(run.info.run_id, status="RUNNING")
        self.outbox.sent(job.number, job.last_sequence)
        if ended:
            self._sent.pop(job.number, None)
        elif events:
            self._sent[job.number] = events[-1].sequence

    # -- the run -------------------------------------------------------------------------------------------------

    def _run(self, job: JobRecord, record: Record) -> Run | None:
        """The job's run, created if there is none; None if somebody deleted it."""
        experiment = self._experiment(job.project)
        run = self._recorded_run(job.tracking_run)
        if run is None:
            found = self._runs(experiment, record)
            if not found and not self._is_held():
                raise LeadershipLost
            run = found[0] if found else self._new_run(experiment, job, record)
            url = self.place.run_url(experiment, run.info.run_id)
            if not self.outbox.note_run(job.number, run.info.run_id, url):
                # Deleted meanwhile: nobody else knows of this run.
                self.client.set_terminated(run.info.run_id, STATUS.get(job.state, "KILLED"))
                return None
        return None if run.info.lifecycle_stage == "deleted" else run

    def _runs(self, experiment: str, record: Record) -> list[Run]:
        """The job's runs, oldest first: more than one if MLflow processed a request late, after it was sent again."""
        of_job, oldest_first = f"tags.`homophily.job` = '{record.job}'", ["attributes.start_time", "attributes.run_id"]
        return list(self.client.search_runs([experiment], of_job, ViewType.ALL, order_by=oldest_first))

    def _recorded_run(self, run: str | None) -> Run | None:
        if run is None:
            return None
        try:
            return self.client.get_run(run)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            # The run is in another MLflow.
            return None

    def _new_run(self, experiment: str, job: JobRecord, record: Record) -> Run:
        began = job.created if job.started is None else job.started
        return self.client.create_run(experiment, _milliseconds(began), record.tags, record.title)

    def _experiment(self, project: str) -> str:
        if project not in self._experiments:
            name = self.settings.tracking_experiment
            if project != DEFAULT_PROJECT:
                name = f"{name}/{project}"
            found = self.client.get_experiment_by_name(name)
            if found is None:
                self._experiments[project] = self.client.create_experiment(name, self.place.artifacts, _EXPERIMENT)
            else:
                if found.lifecycle_stage == "deleted":
                    self.client.restore_experiment(found.experiment_id)
                for key, value in _EXPERIMENT.items():
                    # Made by an earlier release, or by somebody else: unless they said otherwise.
                    if key not in found.tags:
                        self.client.set_experiment_tag(found.experiment_id, key, value)
                self._experiments[project] = found.experiment_id
        return self._experiments[project]

    def _describe(self, run: Run, record: Record) -> None:
        """Send what the run does not have yet: tags, parameters, metrics, points."""
        name, data = run.info.run_id, run.data
        tags = [RunTag(key, value) for key, value in record.tags.items() if data.tags.get(key) != value]
        parameters = [Param(key, value) for key, value in record.parameters.items() if key not in data.params]
        measures = [one for one in record.facts if one.key not in data.metrics]
        for one in record.steps:
            known = self._known_steps(name, one.key, is_there=one.key in data.metrics)
            if one.step not in known:
                known.add(one.step)
                measures.append(one)
        self._log(name, measures, parameters, tags)
        if record.data is not None and not (run.inputs and run.inputs.dataset_inputs):
            points = Dataset(
                name=_short_name(record.data),
                digest=_short_digest(record.data),
                source_type="homophily",
                source=json.dumps({"uri": record.data.name, "sha256": record.data.digest}),
                schema=record.data.schema,
                profile=record.data.profile,
            )
            self.client.log_inputs(name, [DatasetInput(points, [InputTag("mlflow.data.context", "fit")])])

    def _known_steps(self, run: str, key: str, *, is_there: bool) -> set[int]:
        if (run, key) not in self._steps:
            history = self.client.get_metric_history(run, key) if is_there else []
            self._steps[run, key] = {metric.step for metric in history}
        return self._steps[run, key]

    def _log(
        self, run: str, measures: Iterable[Measure], parameters: Iterable[Param] = (), tags: Iterable[RunTag] = ()
    ) -> None:
        """Send in as many requests as it takes."""
        left = [Metric(one.key, one.value, _milliseconds(one.time), one.step) for one in measures]
        more, marks = list(parameters), list(tags)
        while left or more or marks:
            now, left = left[:_METRICS_AT_ONCE], left[_METRICS_AT_ONCE:]
            these, more = more[:_PARAMETERS_AT_ONCE], more[_PARAMETERS_AT_ONCE:]
            self.client.log_batch(run, now, these, marks)
            marks = []

    # -- its end -------------------------------------------------------------------------------------------------

    def _finish(self, run: Run, job: JobRecord, record: Record) -> None:
        name = run.info.run_id
        for other in self._runs(run.info.experiment_id, record):
            if other.info.run_id != name and other.info.lifecycle_stage != "deleted":
                self.client.delete_run(other.info.run_id)
        if record.made is not None:
            self._log_pictures(name, record.made)
        if isinstance(record.made, model_pb2.Model):
            self._log_tables(name, tables_of(self.stores, record.made, record.test))
        self._log_trials(run, job, self._search(record))
        is_wanted = record.registration is not None or self.settings.tracking_models == "all"
        if is_wanted and isinstance(record.made, model_pb2.Model):
            self._try_to_log_model(run, job, record)
        self.client.set_terminated(name, STATUS[job.state], _milliseconds(job.finished or 0.0))
        self._steps = {key: steps for key, steps in self._steps.items() if key[0] != name}

    def _log_tables(self, run: str, tables: dict[str, Columns]) -> None:
        for file, columns in tables.items():
            rows = [list(row) for row in zip(*columns.values(), strict=True)]
            self.client.log_dict(run, {"columns": list(columns), "data": rows}, file)
        if tables:
            listed = [{"path": file, "type": "table"} for file in tables]
            self.client.set_tag(run, MLFLOW_LOGGED_ARTIFACTS, json.dumps(listed))

    def _log_pictures(self, run: str, made: model_pb2.Model | embedding_pb2.Embedding) -> None:
        try:
            pictures = draw(self.stores, made)
        except Exception:
            # The run has everything else.
            _log.warning("%s has no pictures", made.name, exc_info=True)
            return
        with tempfile.TemporaryDirectory(prefix="homophily-") as folder:
            for file, content in pictures.items():
                (Path(folder) / file).write_bytes(content)
            if pictures:
                self.client.log_artifacts(run, folder, "pictures")

    def _search(self, record: Record) -> model_pb2.SearchSummary:
        """The model's search; without a model, the trial jobs that have ended."""
        if isinstance(record.made, model_pb2.Model):
            return record.made.search
        ended = [one for one in self.stores.queue.children(record.job) if one.state == states.SUCCEEDED]
        results = [job_pb2.TrialResult.FromString(one.outcome) for one in ended]
        return model_pb2.SearchSummary(trials=[trial for result in results for trial in result.trials])

    def _log_trials(self, run: Run, job: JobRecord, search: model_pb2.SearchSummary) -> None:
        """Create a run for each trial, below the job's."""
        if not search.trials:
            return
        parent, experiment = run.info.run_id, run.info.experiment_id
        below = f"tags.`mlflow.parentRunId` = '{parent}'"
        found = self.client.search_runs([experiment], below, ViewType.ALL, max_results=10_000)
        known = {one.data.tags.get("homophily.trial"): one for one in found}
        time = _milliseconds(job.finished or 0.0)
        best = search.best if search.HasField("best") else None
        for trial in search.trials:
            number = str(trial.number)
            child = known.get(number)
            if child is None:
                tags = {
                    "mlflow.parentRunId": parent,
                    "homophily.trial": number,
                    "homophily.stage": str(trial.stage),
                    "homophily.pruned": str(trial.pruned).lower(),
                    "homophily.best": str(trial.number == best).lower(),
                }
                began = max(run.info.start_time, time - int(1000 * trial.seconds))
                child = self.client.create_run(experiment, began, tags, f"trial {number}")
            elif child.info.status == "FINISHED" or child.info.lifecycle_stage == "deleted":
                continue
            parameters = [Param(key, value) for key, value in trial_parameters(trial).items()]
            self._log(child.info.run_id, trial_measures(trial, job.finished or 0.0), parameters)
            self.client.set_terminated(child.info.run_id, "FINISHED", time)

    # -- its model -----------------------------------------------------------------------------------------------

    def _try_to_log_model(self, run: Run, job: JobRecord, record: Record) -> None:
        """Log the model; a refusal is noted in the run, which ends anyway: MLflow would refuse it for ever."""
        try:
            self._log_model(run, job, record)
        except MlflowException as error:
            if not _is_refusal(error):
                raise
            _log.warning("MLflow refuses the model of %s: %s", record.job, error.message)
            self.client.set_tag(run.info.run_id, "homophily.refused", str(error.message)[:LONGEST_VALUE])

    def _log_model(self, run: Run, job: JobRecord, record: Record) -> None:
        """Log the model in MLflow's format, and register it if that was asked for."""
        try:
            logged = self._logged_model(run, record)
        except (NotFound, DataLoss) as lost:
            # Deleted before it was sent: the run has everything else.
            _log.warning("the model of %s cannot be logged: %s", record.job, lost.message)
            return
        if record.registration is None:
            return
        name = registered_name(record.job.project, record.registration.name)
        version = self._version(name, str(record.job))
        if version is None:
            made = self.client.create_model_version(
                name,
                source=f"models:/{logged}",
                run_id=run.info.run_id,
                model_id=logged,
                tags={JOB_TAG: str(record.job), MODEL_TAG: record.tags[MODEL_TAG]},
            )
            version = str(made.version)
        for alias in record.registration.aliases:
            self.client.set_registered_model_alias(name, alias, version)
        self.outbox.note_version(job.number, f"models:/{name}/{version}")

    def _version(self, name: str, job: str) -> str | None:
        """The version that a job registered already, if any; creates the registered model if its name is new."""
        try:
            self.client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        quoted = name.replace("'", "''")
        of_job = f"name = '{quoted}' and tags.`homophily.job` = '{job}'"
        return next((str(found.version) for found in self.client.search_model_versions(of_job, max_results=1)), None)

    def _logged_model(self, run: Run, record: Record) -> str:
        from homophily_service.tracking.mlflow_models import save_stored

        assert isinstance(record.made, model_pb2.Model)
        experiment, job = run.info.experiment_id, str(record.job)
        found = self.client.search_logged_models([experiment], f"tags.`homophily.job` = '{job}'")
        logged = next((one for one in found if one.status == "READY"), None)
        if logged is None:
            tags = {JOB_TAG: job, MODEL_TAG: record.made.name}
            parameters = {key: value[:_LONGEST_PARAMETER] for key, value in record.parameters.items()}
            # If a killed tracker has begun one, write it again in the same place.
            logged = next(iter(found), None) or self.client.create_logged_model(
                experiment, MODEL_NAME, run.info.run_id, tags, parameters
            )
            with tempfile.TemporaryDirectory(prefix="homophily-") as folder:
                path = Path(folder) / MODEL_NAME
                save_stored(self.stores, record.made, path, model_id=logged.model_id, run_id=run.info.run_id)
                self.client.log_model_artifacts(logged.model_id, str(path))
            self._link_metrics(run, logged.model_id, record)
            self.client.finalize_logged_model(logged.model_id, "READY")
        outputs = run.outputs.model_outputs if run.outputs is not None else []
        if all(one.model_id != logged.model_id for one in outputs):
            self.client.log_outputs(run.info.run_id, [LoggedModelOutput(logged.model_id, 0)])
        return str(logged.model_id)

    def _link_metrics(self, run: Run, model: str, record: Record) -> None:
        """Log the run's metrics as the model's too, with the dataset that they are about."""
        data = record.data
        about = {} if data is None else {"dataset_name": _short_name(data), "dataset_digest": _short_digest(data)}
        metrics = [
            Metric(one.key, one.value, _milliseconds(one.time), one.step, model_id=model, **about)
            for one in record.facts
        ]
        for start in range(0, len(metrics), _METRICS_AT_ONCE):
            self.client.log_batch(run.info.run_id, metrics[start : start + _METRICS_AT_ONCE])


def _short_name(data: Data) -> str:
    return data.name.rpartition("/")[2]


def _short_digest(data: Data) -> str:
    return data.digest[:_LONGEST_DIGEST]


def _is_refusal(error: MlflowException) -> bool:
    """Whether MLflow refuses the request for good; a timeout or too many calls are temporary."""
    status: int = error.get_http_status_code()  # type: ignore[no-untyped-call]
    return 400 <= status < 500 and status not in (408, 429)


def _milliseconds(seconds: float) -> int:
    return int(1000 * seconds)
