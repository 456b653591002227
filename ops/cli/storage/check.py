"""rehome storage check: what is wrong with the disks of a stopped broker. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import typer

from ops.cli import output
from ops.cli.options import Json
from ops.cli.storage import disks
from ops.cli.storage.disks import Config
from ops.disks.found import Copy, DirectoryFound
from ops.disks.verdict import Problem, Verdict


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(check)


def check(config: Config, json: Json = False) -> None:
    """Read every batch in the log directories of a stopped broker, Apache Kafka's or a storage node; report problems.

    Exit code 0: clean (notes need no action); 1: problems; 2: wrong usage, or the broker is running. Changes nothing.
    """
    settings = disks.settings_of(config)
    disks.stopped(settings.directories)
    found, verdict = disks.judged(settings)
    disks.stopped(settings.directories)  # a broker that has started meanwhile wrote into what was read
    if json:
        output.print_json(as_json(found, verdict))
    else:
        for line in lines(found, verdict):
            typer.echo(line)
    if not verdict.clean:
        raise typer.Exit(1)


def lines(found: Sequence[DirectoryFound], verdict: Verdict) -> Iterator[str]:
    """Yield the report: a line per directory, then the problems, then the notes."""
    for directory in found:
        yield _summary(directory)
    problems = [problem for problem in verdict.problems if not problem.note]
    notes = [problem for problem in verdict.problems if problem.note]
    yield ""
    yield "no problems" if not problems else "1 problem:" if len(problems) == 1 else f"{len(problems)} problems:"
    for problem in problems:
        yield from _lines(problem)
    if notes:
        yield ""
        yield "1 note:" if len(notes) == 1 else f"{len(notes)} notes:"
        for note in notes:
            yield from _lines(note)


def _summary(directory: DirectoryFound) -> str:
    if directory.meta.state == "missing" or directory.unreadable:
        return f"{directory.path}: {directory.unreadable or 'does not exist'}"
    size = sum(copy.log.size for copy in directory.copies)
    batches = sum(copy.log.batches for copy in directory.copies)
    count = len(directory.copies)
    replicas = "1 replica" if count == 1 else f"{count} replicas"
    stopped = "stopped cleanly" if directory.clean else "not stopped cleanly"
    id = f"directory.id {directory.id}" if directory.id else "no directory.id"
    return f"{directory.path}: {replicas}, {batches} batches, {output.size(size)}, {stopped}, {id}"


def _lines(problem: Problem) -> Iterator[str]:
    yield f"  {problem.kind}: {problem.path}"
    yield f"    {problem.says}"
    for line in problem.details:
        yield f"    {line}"
    if problem.advice:
        yield f"    next: {problem.advice}"


def as_json(found: Sequence[DirectoryFound], verdict: Verdict) -> dict[str, Any]:
    """Return the report as JSON: directories with their replicas, duplicates, problems."""
    return {
        "clean": verdict.clean,
        "directories": [
            {
                "path": directory.path,
                "directory_id": directory.id or None,
                "state": directory.meta.state,
                "stopped_cleanly": directory.clean,
                "replicas": [_replica(copy) for copy in directory.copies],
                "folders": [{"path": folder.path, "kind": folder.kind} for folder in directory.folders],
            }
            for directory in found
        ],
        "duplicates": [
            {
                "topic": each.tp.topic,
                "partition": each.tp.partition,
                "directories": [copy.directory for copy in each.copies],
                "keep": each.keep.directory if each.keep is not None else None,
                "why": each.why,
            }
            for each in verdict.duplicates
        ],
        "problems": [
            {
                "kind": problem.kind,
                "path": problem.path,
                "says": problem.says,
                "details": list(problem.details),
                "next": problem.advice,
                "topic": problem.tp.topic if problem.tp else None,
                "partition": problem.tp.partition if problem.tp else None,
                "note": problem.note,
            }
            for problem in verdict.problems
        ],
    }


def _replica(copy: Copy) -> dict[str, Any]:
    log = copy.log
    return {
        "topic": copy.tp.topic,
        "partition": copy.tp.partition,
        "topic_id": copy.topic_id or None,
        "log_start_offset": copy.start,
        "log_end_offset": log.end,
        "bytes": log.size,
        "batches": log.batches,
        "leader_epochs": [list(entry) for entry in log.epochs.entries],
        "whole": log.whole,
    }
