"""``moeguard eval``: paired spot checks of two serving arms, stored sample logs compared, and problems to try it with."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeguard.cli import eval_compare, eval_model
from moeguard.cli.run import JsonOption, OutOption, nothing_beside_resume

if TYPE_CHECKING:
    from moeguard.evals.options import Options
    from moeguard.evals.record import Record
    from moeguard.evals.result import Result

app = typer.Typer(no_args_is_help=True, add_completion=False,
                  help="Paired spot checks: supporting evidence, never the sweep itself.")
app.command("compare")(eval_compare.compare)
app.command("model")(eval_model.model)

UrlOption = Annotated[str | None, typer.Option(help="http://HOST:PORT of a server that runs.")]
CommandOption = Annotated[str | None, typer.Option(help="Command that starts the server; {port} stands for a free port. It is "
                                                        "always stopped.")]
#: What the tasks differ in: largest drop, tokens of an answer, examples before a question.
MARGIN = {"gsm8k": 0.02, "gpqa": 0.05}
MAX_TOKENS = {"gsm8k": 512, "gpqa": 4096}
SHOTS = {"gsm8k": 5, "gpqa": 0}


def _spot_check(task: str) -> Any:
    def command(
        context: typer.Context,
        baseline_url: UrlOption = None, candidate_url: UrlOption = None,
        baseline_cmd: CommandOption = None, candidate_cmd: CommandOption = None,
        model: Annotated[str | None, typer.Option(help="Name of the model. Default: the one that is served.")] = None,
        data: Annotated[Path | None, typer.Option(help="Questions: .jsonl, .json or .csv. Default: the public set, as the "
                                                       "library of Hugging Face finds it.")] = None,
        train: Annotated[Path | None, typer.Option(help="File of the examples. Default: the first rows of --data, which are not "
                                                        "asked then.")] = None,
        shots: Annotated[int, typer.Option(help="Examples before each question.")] = SHOTS[task],
        limit: Annotated[int | None, typer.Option(help="Ask the first N questions only.")] = None,
        repeats: Annotated[int, typer.Option(help="Answers a question, each with its own seed.")] = 1,
        margin: Annotated[float, typer.Option(help="Largest drop that is allowed, as a share of the answers.")] = MARGIN[task],
        aa: Annotated[bool, typer.Option("--aa", help="Run the baseline twice first: how much do runs differ by "
                                                      "themselves?")] = False,
        early_stop: Annotated[bool, typer.Option("--early-stop", help="End as soon as harm is shown. Nothing else ends a run "
                                                                      "early.")] = False,
        together: Annotated[bool, typer.Option("--together", help="Both servers at the same time, taking turns. Default: only "
                                                                  "where both run already.")] = False,
        chat: Annotated[bool, typer.Option("--chat", help="Use /v1/chat/completions.")] = False,
        concurrency: Annotated[int, typer.Option(help="Requests at the same time.")] = 16,
        max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.")] = MAX_TOKENS[task],
        temperature: Annotated[float, typer.Option(help="Sampling temperature.")] = 0.0,
        chunk: Annotated[int, typer.Option(help="Questions that are asked, and kept, in one go.")] = 100,
        timeout: Annotated[str, typer.Option(help="Longest time of one request.")] = "5m",
        start_timeout: Annotated[str, typer.Option(help="Longest time until a started server answers.")] = "30m",
        attempts: Annotated[int, typer.Option(help="How often one request is sent at most.")] = 5,
        python: Annotated[Path | None, typer.Option(help="Interpreter that has lm-eval. Default: this one.")] = None,
        backend: Annotated[str | None, typer.Option(help="Backend of the cell that this supports, with --recipe.")] = None,
        recipe: Annotated[str | None, typer.Option(help="Recipe of that cell.")] = None,
        environment: Annotated[Path | None, typer.Option(help="Output of doctor --json on the servers' machine. Default: this "
                                                              "machine.")] = None,
        out: OutOption = None,
        resume: Annotated[Path | None, typer.Option(help="Go on with a run that was interrupted; takes its options.")] = None,
        as_json: JsonOption = False,
    ) -> int:
        from moeguard.core.duration import duration
        from moeguard.core.errors import MoeguardError
        from moeguard.evals.options import Options
        from moeguard.evals.record import Record

        if resume is not None:
            nothing_beside_resume(context)
            record = Record.open(resume)
            if record.options.task != task:
                raise MoeguardError(f"--resume: {resume} is a run of {record.options.task}; allowed: moeguard eval "
                                    f"{record.options.task} --resume {resume}")
            return _conduct(record, as_json=as_json)
        options = Options.of(
            task=task, baseline_url=baseline_url, candidate_url=candidate_url, baseline_cmd=baseline_cmd,
            candidate_cmd=candidate_cmd, model=model, data=_absolute(data), train=_absolute(train), shots=shots, limit=limit,
            repeats=repeats, margin=margin, again=aa, early_stop=early_stop, together=together, chat=chat,
            concurrency=concurrency, max_tokens=max_tokens, temperature=temperature, chunk=chunk,
            timeout=duration(timeout, "--timeout"), start_timeout=duration(start_timeout, "--start-timeout"), attempts=attempts,
            python=None if python is None else str(python.absolute()), backend=backend, recipe=recipe)
        _check(options)
        return _conduct(Record.create(out, options, _environment(environment)), as_json=as_json)

    command.__doc__ = (f"Ask two servers the questions of {task.upper()}, autotuning off and on, and compare the answers.\n\n"
                       "Exit codes: 0 not worse by more than the margin, 1 worse, 2 bad input, 3 cannot tell.")
    return command


app.command("gsm8k")(_spot_check("gsm8k"))
app.command("gpqa")(_spot_check("gpqa"))


@app.command()
def problems(
    out: Annotated[Path, typer.Option("--out", help="File to write, .jsonl.")],
    count: Annotated[int, typer.Option(help="How many.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    as_json: JsonOption = False,
) -> int:
    """Write made-up arithmetic word problems in GSM8K's form: to try a setup, not to judge a model."""
    from moeguard.core.errors import MoeguardError
    from moeguard.evals.arithmetic import problems as made

    if count < 1:
        raise MoeguardError(f"--count: {count}; allowed: at least 1")
    try:
        out.write_text("".join(json.dumps(row) + "\n" for row in made(count, seed)), encoding="utf-8")
    except OSError as error:
        raise MoeguardError(f"--out: {out} cannot be written ({error.strerror})") from None
    sys.stdout.write(json.dumps({"path": str(out), "problems": count, "seed": seed}) + "\n" if as_json
                     else f"{count} problems written to {out}\n")
    return 0


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())


def _check(options: Options) -> None:
    """What can be known before anything is started. Raises MoeguardError."""
    from moeguard.evals.dataset import Dataset, load
    from moeguard.evals.server import Server

    log = Path("unused.log")
    Server("baseline", options.baseline_url, options.baseline_cmd, log)
    Server("candidate", options.candidate_url, options.candidate_cmd, log)
    if options.train is not None:
        load(Path(options.train), "--train")
    if options.data is not None:
        train = None if options.train is None else load(Path(options.train), "--train")
        Dataset.of(options.task, load(Path(options.data)), train, options.shots, f"--data: {options.data}")


def _environment(file: Path | None) -> dict[str, Any]:
    from moeguard.core.environment import fingerprint
    from moeguard.core.errors import MoeguardError

    if file is None:
        from moeguard.engine.options import chosen_device

        return fingerprint(chosen_device(None))
    try:
        environment = json.loads(file.read_text(encoding="utf-8"))["environment"]
        if not isinstance(environment["arch"], str) or not isinstance(environment["packages"], dict):
            raise TypeError
    except (OSError, ValueError, KeyError, TypeError):
        raise MoeguardError(f"--environment: {file} is no output of moeguard doctor --json") from None
    assert isinstance(environment, dict)
    return environment


def _conduct(record: Record, *, as_json: bool) -> int:
    """Run to the end with a progress bar on a terminal, and print the result."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from moeguard.evals.spotcheck import Progress as Step
    from moeguard.evals.spotcheck import SpotCheck

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} answers"),
               TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        row = bar.add_task("starting", total=None)

        def listen(step: Step) -> None:
            bar.update(row, description=step.arm, completed=step.answered, total=step.total)
            if step.sentence is not None and not as_json:
                bar.console.print(step.sentence, highlight=False, soft_wrap=True)

        with _unwound():
            result = SpotCheck(record, listen).run()
    data = {**result.to_data(), "run_dir": str(record.path), "resume": None if result.lost is None else
            f"moeguard eval {result.task} --resume {record.path}"}
    (record.path / "result.json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    if as_json:
        sys.stdout.write(json.dumps(data) + "\n")
    else:
        _show(result, data)
    return result.exit_code


@contextlib.contextmanager
def _unwound() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP end this process as an interrupt does, so that private logs go with it."""
    before = {number: held for number in (signal.SIGTERM, signal.SIGHUP) if (held := signal.getsignal(number)) == signal.SIG_DFL}
    for number in before:
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        for number, held in before.items():
            signal.signal(number, held)


def _show(result: Result, data: dict[str, Any]) -> None:
    from moeguard.cli.gate import say

    say(result.sentence, {"not_worse": "bold green", "worse": "bold red", "cannot_tell": "bold yellow"}[result.outcome])
    if result.noise is not None:
        say(f"A/A: {result.noise.losses + result.noise.gains} of {result.noise.questions * result.noise.repeats} answers of the "
            "baseline came out otherwise in its second run")
        say(f"  {result.noise.plan.sentence}", "dim")
    for name, one in result.compared.items():
        eval_compare.tell(name, one)
    for name, arm in result.arms.items():
        retries = ", ".join(f"{number} x {kind}" for kind, number in arm.retries.items()) or "none"
        say(f"{name}: {arm.answers} answers, {arm.errors} without one, retries: {retries}", "dim")
    if data["resume"] is not None:
        say(f"to go on: {data['resume']}")
    say(f"written to {data['run_dir']}", "dim")
