"""The ``moeguard`` command: sub-commands, exit codes, and errors as one line."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from moeguard import __version__
from moeguard.cli import (
    allow,
    allow_export,
    bench,
    compare,
    doctor,
    eval,
    gate,
    replay,
    report,
    router,
    run,
    selftest,
    sweep,
    tune_audit,
)
from moeguard.core.errors import MoeguardError

app = typer.Typer(name="moeguard", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Evidence about Mixture-of-Experts kernels: fuzzed cases, side by side, watched and judged.")
app.command("doctor")(doctor.doctor)
app.command("run")(run.run)
app.command("replay")(replay.replay)
app.command("sweep")(sweep.sweep)
app.command("selftest")(selftest.selftest)
app.command("router")(router.router)
app.command("tune-audit")(tune_audit.tune_audit)
app.command("bench")(bench.bench)
app.command("compare")(compare.compare)
app.command("gate")(gate.gate)
allow.app.command()(allow_export.export)
app.add_typer(allow.app, name="allow")
app.add_typer(eval.app, name="eval")
app.command("report")(report.report)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"moeguard {__version__}")
        raise typer.Exit


@app.callback()
def _options(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True,
                                                   help="Print the version.")] = False) -> None:
    """Exit codes: 0 verified and clean, 1 findings, 2 bad usage or input, 3 inconclusive, 130 interrupted."""


def main() -> NoReturn:
    """Entry point. Errors that the user caused are one line on stderr and exit code 2."""
    try:
        code = app(args=_words(sys.argv[1:]), standalone_mode=False)
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # nobody reads on; the exit code stands
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except MoeguardError as error:
        _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(2)
    except OSError as error:
        _fail(f"cannot write the result: {error.strerror}", 2)
    except Exception as error:
        # typer carries its own copy of click in newer versions: its usage errors are known by their interface
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stderr.write(f"{message()}\n")
            sys.exit(2)
        _fail(str(message()), 2)
    sys.exit(code if isinstance(code, int) else 0)


def _words(words: list[str]) -> list[str]:
    """The command line, where ``--ledger`` of ``replay`` may stand without its value: the packaged ledger."""
    if words[:1] != ["replay"]:
        return words
    behind = [*words[1:], "-"]
    return ["--ledger=packaged" if word == "--ledger" and after.startswith("-") else word
            for word, after in zip(words, behind, strict=True)]


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"moeguard: {' '.join(message.split())}\n")
    sys.exit(code)
