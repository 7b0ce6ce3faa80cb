"""What ``run`` and ``replay`` share: conduct a campaign with a progress bar, write the reports, print the result."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from moeguard.backends.registry import replaced
from moeguard.cli.console import output
from moeguard.core.errors import RunDirectoryError
from moeguard.core.events import Event, Executed, Found, ScenarioFinished
from moeguard.engine.campaign import Campaign
from moeguard.engine.rundir import RunDirectory
from moeguard.report import known, sweep
from moeguard.report.glossary import KINDS
from moeguard.report.outcome import Outcome
from moeguard.report.writer import write_all


def conduct(directory: RunDirectory, *, as_json: bool) -> int:
    """Run or resume the campaign of ``directory``; the exit code."""
    console = Console(stderr=True)
    for name, file in replaced(directory.options.backends).items():
        sys.stderr.write(f"--plugin: {file.name} replaces the built-in backend {name!r}\n")
    with _one_interrupt():
        with _Bar(console, directory, quiet=as_json or not console.is_terminal) as bar:
            events = Campaign(directory, bar.listen).run()
        outcome = derive(directory, events)
        if as_json:
            sys.stdout.write(json.dumps(outcome.to_data(str(directory.path))) + "\n")
        else:
            show(outcome, directory)
    return outcome.exit_code


@contextlib.contextmanager
def _one_interrupt() -> Iterator[None]:
    """Ctrl-C counts once: pressed again, it must not keep the run directory from being completed."""
    def interrupt(number: int, frame: object) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def derive(directory: RunDirectory, events: list[Event]) -> Outcome:
    """Write every derived file. Raises RunDirectoryError when the directory cannot be written."""
    try:
        return write_all(directory.path, directory.manifest, events)
    except OSError as error:
        raise RunDirectoryError(f"{directory.path}: reports cannot be written ({error.strerror})") from None


def show(outcome: Outcome, directory: RunDirectory) -> None:
    """The result for a person, on stdout."""
    console = output()
    table = Table(title=None, box=None, pad_edge=False)
    for heading in ("backend", "recipe", "cases", "refused", "executions", "findings"):
        table.add_column(heading, justify="left" if heading in ("backend", "recipe") else "right")
    cells = [cell for cell in outcome.cells if cell["cases"] or cell["backend"] not in outcome.absent]
    for cell in cells:
        table.add_row(escape(str(cell["backend"])), cell["recipe"], str(cell["cases"]), str(cell["refused"]),
                      str(cell["executions"]), str(len(cell["findings"])))
    if cells:
        console.print(table)
    for backend, reason in outcome.absent.items():
        console.print(f"not run: {escape(backend)}: {escape(reason)}", highlight=False, soft_wrap=True)
    if outcome.tactics:
        header, rows = sweep.table(outcome.tactics)
        tactics = Table(title=None, box=None, pad_edge=False)
        for heading in header:
            tactics.add_column(heading, overflow="fold")
        for row in rows:
            tactics.add_row(*(escape(value) for value in row))
        console.print()
        console.print(tactics)
    for finding in outcome.findings:
        mark = " (known)" if finding.known else ""
        console.print(f"\n[bold red]{finding.kind}[/]{mark} {escape(finding.backend)} {finding.recipe}"
                      + (f" tactic {escape(finding.tactic)}" if finding.tactic else ""), highlight=False)
        console.print(f"  [dim]{escape(KINDS[finding.kind])}[/]", highlight=False)
        console.print(f"  {escape(finding.sentence)}", highlight=False)
        entry = known.sentence(outcome.standing, finding)
        if entry:
            console.print(f"  [dim]{escape(entry)}[/]", highlight=False, soft_wrap=True)
        console.print(f"  {escape(outcome.replay(finding, str(directory.path)))}", highlight=False, soft_wrap=True)
    colour = {"clean": "green", "findings": "red"}.get(outcome.verdict, "yellow")
    console.print(f"\n[bold {colour}]{outcome.verdict}[/]: {escape(outcome.sentence)}", highlight=False, soft_wrap=True)
    if outcome.verdict == "inconclusive":
        for reason in outcome.reasons():
            console.print(f"  {escape(reason)}", highlight=False, soft_wrap=True)
    if outcome.flatness.workers:
        console.print(escape(outcome.flatness.sentence), highlight=False, soft_wrap=True)
    console.print(f"report: {escape(str(directory.path / 'report.html'))}", highlight=False, soft_wrap=True)
    if not outcome.complete:
        command = shlex.join(["moeguard", "run", "--resume", str(directory.path)])
        console.print(f"resume: {escape(command)}", highlight=False, soft_wrap=True)


class _Bar:
    """A progress bar on stderr, fed by the event stream."""

    def __init__(self, console: Console, directory: RunDirectory, *, quiet: bool) -> None:
        options = directory.options
        self._budget, self._cases = options.budget, options.max_cases
        self._executions = self._findings = self._scenarios = 0
        self._seconds = 0.0
        self._progress = Progress(SpinnerColumn(), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
                                  console=console, disable=quiet, transient=True)
        total = options.budget or (options.max_cases or 0) * len(options.backends) or len(options.cases) * options.repeat
        self._task = self._progress.add_task("starting workers", total=total or None)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def listen(self, event: Event) -> None:
        """Count."""
        if isinstance(event, Executed):
            self._executions += event.count
        elif isinstance(event, Found) and not event.shrunk:
            self._findings += 1
        elif isinstance(event, ScenarioFinished):
            self._scenarios += 1
            self._seconds += event.seconds
        done = self._seconds if self._budget else float(self._scenarios)
        self._progress.update(self._task, completed=done, description=(
            f"{self._scenarios} scenarios, {self._executions} executions, {self._findings} findings"))
