"""Durable jobs: listed, shown, followed, tried again, stopped."""

from __future__ import annotations

import time
from typing import Any, Callable

import click

from record_service.client import Json
from record_service.commands.base import Decorated, Group, No, Run, at, how_many, pass_run
from record_service.output import plain

_STATUSES = ["queued", "running", "retrying", "succeeded", "dead", "cancelled"]
_JOBS = {
    "ID": "id",
    "KIND": "kind",
    "STATUS": "status",
    "ATTEMPTS": "attempts",
    "CREATED": "created_at",
    "FINISHED": "finished_at",
    "ERROR": "error",
}
_ENDED = frozenset({"succeeded", "dead", "cancelled"})
_POLL_SECONDS = 1.0


def watch_option(command: Decorated) -> Decorated:
    """Give a command `--watch`."""
    option = click.option(
        "--watch", "watching", is_flag=True, help="Follow it; 1 if it does not succeed."
    )
    return option(command)


def watch(run: Run, job_id: str, failed: Callable[[Json], bool] = lambda _: False) -> None:
    """Print a job each time it has come further. Raises `No` where it ends otherwise than well.

    `failed` looks at the progress of one that ended as planned.
    """
    shown = None
    while True:
        job = run.client.get(at("/v1/jobs/{}", job_id))
        progress: dict[str, Any] = job["progress"] or {}
        if (job["status"], progress) != shown:
            shown = (job["status"], progress)
            run.out.aside(_print, run, job, progress)
        if job["status"] in _ENDED:
            break
        time.sleep(_POLL_SECONDS)
    if job["status"] != "succeeded":
        raise No(f"{job_id} is {job['status']}{': ' + job['error'] if job['error'] else ''}.")
    if failed(progress):
        raise No(f"{job_id} has ended, but not all is well.")


def _print(run: Run, job: Json, progress: Json) -> None:
    told = {name: value for name, value in progress.items() if not isinstance(value, (dict, list))}
    numbers = [f"{name} {plain(value)}" for name, value in told.items()]
    run.out.line(job, "\t".join([job["id"], job["status"], *numbers]))


@click.group(cls=Group)
def jobs() -> None:
    """Work that is done in the background."""


@jobs.command("list")
@click.option("--kind")
@click.option("--status", type=click.Choice(_STATUSES))
@how_many
@pass_run
def list_jobs(run: Run, kind: str | None, status: str | None, limit: int | None) -> None:
    """List jobs, newest first."""
    run.list("/v1/jobs", _JOBS, limit, kind=kind, status=status)


@jobs.command("show")
@click.argument("job_id")
@watch_option
@pass_run
def show(run: Run, job_id: str, watching: bool) -> None:
    """Show a job."""
    if watching:
        watch(run, job_id)
    else:
        run.out.item(run.client.get(at("/v1/jobs/{}", job_id)))


@jobs.command("retry")
@click.argument("job_id")
@watch_option
@pass_run
def retry(run: Run, job_id: str, watching: bool) -> None:
    """Try a dead job again, from where it stopped."""
    _move(run, job_id, "retry", watching)


@jobs.command("resume")
@click.argument("job_id")
@watch_option
@pass_run
def resume(run: Run, job_id: str, watching: bool) -> None:
    """Go on with a cancelled job, from where it stopped."""
    _move(run, job_id, "resume", watching)


@jobs.command("cancel")
@click.argument("job_id")
@pass_run
def cancel(run: Run, job_id: str) -> None:
    """Stop a job where it is; what it has done stays done."""
    _move(run, job_id, "cancel", watching=False)


def _move(run: Run, job_id: str, verb: str, watching: bool) -> None:
    job = run.client.post(at("/v1/jobs/{}/", job_id) + verb)
    if watching:
        watch(run, job_id)
    else:
        run.out.item(job)
