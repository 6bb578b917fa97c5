"""The commands, put together."""

from __future__ import annotations

import io
import sys

import typer

from homophily_service.cli import (
    answers,
    demo,
    embedding,
    label,
    listing,
    questions,
    report,
    serve,
    store,
    studio,
    submit,
    version,
)
from homophily_service.cli.failures import explained
from homophily_service.cli.flags import Command, Group
from homophily_service.cli.screen import print_status

app = typer.Typer(
    cls=Group,
    help="Label a whole dataset from a handful of labels.",
    epilog="Exit codes: 0 done · 1 the job or the service failed · 2 wrong usage or a wrong field · "
    "3 the service cannot be reached · 4 not found · 5 not allowed · 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    # Bugs print a plain traceback, without the values of variables, which may be secret.
    pretty_exceptions_enable=False,
)
_FILE, _RUN, _WORK, _LOOK = "Without a service", "Run the service", "Submit work", "Inspect and clean up"
for name, function, panel in (
    ("demo", demo.demo, _RUN),
    ("serve", serve.serve, _RUN),
    ("worker", serve.worker, _RUN),
    ("tracker", serve.tracker, _RUN),
    ("studio", studio.studio, _RUN),
    ("ui", serve.ui, _RUN),
    ("migrate", store.migrate, _RUN),
    ("fsck", store.fsck, _RUN),
    ("health", serve.health, _RUN),
    ("version", version.version, _RUN),
    ("config", serve.show_config, _RUN),
    ("label", label.label, _FILE),
    ("upload", submit.upload, _WORK),
    ("append", submit.append, _WORK),
    ("fit", submit.fit, _WORK),
    ("transduce", submit.transduce, _WORK),
    ("import", submit.import_model, _WORK),
    ("embed", embedding.embed, _WORK),
    ("predict", answers.predict, _WORK),
    ("solution", answers.solution, _WORK),
    ("suggest", questions.suggest, _WORK),
    ("explain", questions.explain, _WORK),
    ("suspects", questions.suspects, _WORK),
    ("jobs", listing.jobs, _LOOK),
    ("job", listing.job, _LOOK),
    ("watch", listing.watch, _LOOK),
    ("cancel", listing.cancel, _LOOK),
    ("models", listing.models, _LOOK),
    ("model", listing.model, _LOOK),
    ("datasets", listing.datasets, _LOOK),
    ("embeddings", listing.embeddings, _LOOK),
    ("embedding", embedding.embedding, _LOOK),
    ("report", report.report, _LOOK),
    ("delete", listing.delete, _LOOK),
):
    app.command(name, cls=Command, rich_help_panel=panel)(function)
app.callback()(version.options)
app.add_typer(serve.token, name="token", rich_help_panel=_RUN)
app.add_typer(store.store, name="store", rich_help_panel=_RUN)


def run() -> None:
    """Run a command; an error ends it with a sentence and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        # Terminals without a dash or a tick show a question mark.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except Exception as error:
        known = explained(error)
        if known is None:
            raise
        sentence, code = known
        print_status(f"Error: {sentence}", "red")
        sys.exit(code)
