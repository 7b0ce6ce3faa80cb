"""``moeguard tune-audit``: is the tuned token range what is served?"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeguard.cli.console import output
from moeguard.cli.run import JsonOption

if TYPE_CHECKING:
    from moeguard.autotune.audit import Audit, Setup
    from moeguard.autotune.spans import Span

#: Backend and layer of a measurement.
MEASURED, LAYER = "flashinfer_cutlass", "Qwen3-30B-A3B"


def tune_audit(
    max_num_tokens: Annotated[int | None, typer.Option(
        "--max-num-tokens", help="Tokens of one data-parallel rank in a step; required, here or in a file.")] = None,
    dp_size: Annotated[int | None, typer.Option("--dp-size", help="Data-parallel ranks. Default: 1.")] = None,
    chunk_size: Annotated[int | None, typer.Option("--chunk-size", help="Tokens of one call of trtllm_nvfp4.")] = None,
    capture_size: Annotated[int | None, typer.Option(
        "--cudagraph-capture-size", help="Tokens of the largest captured CUDA graph.")] = None,
    tune_max_num_tokens: Annotated[list[int] | None, typer.Option(
        "--tune-max-num-tokens", help="The range that is tuned for; repeatable, in the order in which one process gives them. "
                                      "Default: FlashInfer's, 8192.")] = None,
    flashinfer_version: Annotated[str | None, typer.Option(
        "--flashinfer-version", help="Release whose buckets serve, 0.6.6 to 0.7.4. Default: 0.7.4.")] = None,
    kernel: Annotated[str | None, typer.Option(
        "--kernel", help="cutlass, trtllm, trtllm_nvfp4 or cutedsl. Default: cutlass.")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="JSON, TOML or YAML file with vLLM's keys.")] = None,
    vllm_args: Annotated[str | None, typer.Option("--vllm-args", help="Command line of vllm serve, as one word.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Time what too short a range costs; needs a GPU.")] = False,
    layer: Annotated[str, typer.Option("--layer", help="Layer that --measure times, MODEL or MODEL/tpN.")] = LAYER,
    as_json: JsonOption = False,
) -> int:
    """Compare the range of token counts that FlashInfer tunes for with what is served, and show what serves which count.

    Options win over --vllm-args, and that over --config. Exit code 1 when there are warnings, 3 when there are none and
    --measure could not measure.
    """
    from moeguard.autotune.audit import Setup, audit
    from moeguard.autotune.serving import Settings, from_arguments, from_file
    from moeguard.cli.layers import sizes
    from moeguard.core.errors import MoeguardError

    sources = [from_file(config) if config is not None else Settings(),
               from_arguments(vllm_args) if vllm_args is not None else Settings()]
    given = {"max_num_tokens": max_num_tokens, "dp_size": dp_size, "chunk_size": chunk_size, "capture_size": capture_size,
             "caps": tuple(tune_max_num_tokens or ()) or None, "flashinfer_version": flashinfer_version, "kernel": kernel}
    values: dict[str, Any] = {}
    for more in (*(source.values for source in sources), {name: value for name, value in given.items() if value is not None}):
        values |= more
    if "max_num_tokens" not in values:
        raise MoeguardError("--max-num-tokens: missing; allowed: 1 or more, here or as max_num_batched_tokens in --vllm-args or "
                            "--config")
    found = audit(Setup(**values))
    found = replace(found, notes=(*found.notes, *(note for source in sources for note in source.notes)))
    sizes(layer)
    measured = _measure(found.setup, layer) if measure else None
    ignored = [name for source in sources for name in source.ignored]
    if as_json:
        sys.stdout.write(json.dumps(found.to_data() | {"ignored": ignored, "measured": measured}) + "\n")
    else:
        _show(found, ignored, measured)
    return 1 if found.warnings else 3 if measured is not None and measured["reason"] is not None else 0


def _measure(setup: Setup, layer: str) -> dict[str, Any]:
    """What the range costs, or ``reason`` why that was not measured."""
    from moeguard.autotune.audit import DEFAULT_CAP
    from moeguard.autotune.buckets import buckets
    from moeguard.backends import registry

    if setup.kernel != "cutlass":
        return {"reason": f"only the kernel cutlass can be measured, not {setup.kernel}"}
    reason, tokens = registry.unavailable(MEASURED), min(setup.served, DEFAULT_CAP)  # the adapter tunes no further
    if reason is None and setup.cap >= tokens:
        reason = f"the range reaches {tokens} tokens, the most that can be measured: there are no two tactics to compare"
    if reason is None and setup.cap not in buckets(setup.flashinfer_version, DEFAULT_CAP):
        reason = f"the range {setup.cap} is no bucket of the range {DEFAULT_CAP}, which is the one that the adapter tunes"
    return {"reason": reason} if reason is not None else _price(setup.cap, tokens, layer)


def _price(cap: int, tokens: int, layer: str) -> dict[str, Any]:
    from moeguard.backends import registry
    from moeguard.checks.session import Session
    from moeguard.checks.subject import Resources
    from moeguard.checks.tuned_range import price
    from moeguard.cli.layers import case, sizes
    from moeguard.engine.options import chosen_device

    backend, resources = registry.get(MEASURED), Resources(chosen_device(None))
    sessions = [Session(backend, case("bf16", sizes(layer), count, 0), resources) for count in (cap, tokens)]
    found = price(*sessions)
    return {"reason": found} if isinstance(found, str) else {"reason": None, "layer": layer, "recipe": "bf16"} | found.to_data()


def _show(found: Audit, ignored: list[str], measured: dict[str, Any] | None) -> None:
    from rich.table import Table

    from moeguard.cli.gate import say
    from moeguard.report.text import brief

    setup = found.setup
    table = Table(box=None, pad_edge=False)
    for heading in ("bucket", "serves", "T / bucket"):
        table.add_column(heading, justify="right")
    for row in rows(found.buckets):
        table.add_row(*row)
    output().print(table)

    default = " (FlashInfer's default)" if setup.tune_max_num_tokens is None else ""
    say(f"\nserved: up to {setup.served} tokens a call; tuned: up to {setup.cap}{default}; "
        f"rule: FlashInfer {setup.flashinfer_version}, {setup.kernel}")
    for caution in found.warnings:
        say(f"warning: {caution.code}: {caution.sentence}", "yellow")
    for note in found.notes:
        say(f"note: {note}")
    if ignored:
        say(f"ignored: {', '.join(ignored)}")
    if measured is not None and measured["reason"] is not None:
        say(f"not measured: {measured['reason']}")
    elif measured is not None:
        say(f"measured: {measured['layer']} {measured['recipe']}, T = {measured['tokens']}: the tactic tuned for "
            f"{measured['tuned_for']} takes {brief(measured['seconds'])}, the one tuned for {measured['tokens']} "
            f"{brief(measured['seconds_at_served'])}: {measured['ratio']} times")
    say(f"recommended: tune_max_num_tokens = {setup.recommended}")


def rows(table: tuple[Span, ...]) -> list[tuple[str, str, str]]:
    """The table for people: the buckets that serve nothing, which are the largest, are one row."""
    used = [span for span in table if span.first is not None]
    unused = [span for span in table if span.first is None]
    return [*(_row(span, span) for span in used), *([_row(unused[0], unused[-1])] if unused else [])]


def _row(first: Span, last: Span) -> tuple[str, str, str]:
    buckets = "default" if first.bucket is None else str(first.bucket) if first == last else f"{first.bucket} to {last.bucket}"
    if first.first is None:
        return buckets, "nothing", "-"
    serves = str(first.first) if first.first == last.last else f"{first.first} to {last.last}"
    return buckets, serves, "-" if last.worst_ratio is None else f"{last.worst_ratio:.2f}"
