"""The command line, `attnspec`. Bad input is one line and exit code 2; torch is imported only where a command needs
it."""

from __future__ import annotations

import json
import secrets
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from attnspec.conformance import SUITE_VERSION
from attnspec.conformance.golden_cli import Json, golden_app
from attnspec.spec import SPEC_VERSION
from attnspec.spec.errors import InputError

app = typer.Typer(
    name="attnspec",
    help="The reference spec and conformance suite for attention kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
list_app = typer.Typer(help="List backends, profiles, rules or cases.", no_args_is_help=True)
app.add_typer(golden_app, name="golden")
app.add_typer(list_app, name="list")

Target = Annotated[
    str, typer.Argument(help="A backend's name, package.module:attr, path/to/file.py:attr or path/to/file.cu:kernel.")
]


def main() -> None:
    """Run the command line; the entry point of the command `attnspec`."""
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell started this in the background, deaf to SIGINT
        signal.signal(number, _interrupt)
    try:
        app()
    except InputError as error:
        _complain(str(error))
    except SystemExit as end:  # typer turns KeyboardInterrupt into exit code 130, and says nothing
        if end.code == 130:
            sys.stderr.write("attnspec: interrupted; nothing was written\n")
        raise
    except (OSError, UnicodeError) as error:
        if isinstance(error, BrokenPipeError):  # the reader of a pipe has gone, `attnspec list cases | head`
            sys.stderr.close()
            sys.exit(141)
        _complain(f"{type(error).__name__}: {error}")


def _complain(what: str) -> None:
    line = " ".join(what.split()).encode("utf-8", "backslashreplace").decode()
    with suppress(OSError):
        sys.stderr.write(f"attnspec: error: {line}\n")
    sys.exit(2)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"attnspec {SUITE_VERSION} (spec {SPEC_VERSION})")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the suite's and the spec's versions."),
    ] = False,
) -> None:
    pass


@app.command()
def validate(
    target: Target,
    level: Annotated[str, typer.Option(help="quick or full.")] = "quick",
    profile: Annotated[list[str] | None, typer.Option(help="Only cases of this profile; may be repeated.")] = None,
    rule: Annotated[list[str] | None, typer.Option(help="Only cases that enforce this rule; may be repeated.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only cases of this dtype; may be repeated.")] = None,
    case: Annotated[list[str] | None, typer.Option(help="Only this case; may be repeated.")] = None,
    accuracy: Annotated[
        str | None, typer.Option(help="Error budget of a bare callable: fused (default) or eager.")
    ] = None,
    causal_alignment: Annotated[
        str | None, typer.Option(help="What a bare callable means by is_causal: upper_left (default) or lower_right.")
    ] = None,
    alibi_alignment: Annotated[
        str | None,
        typer.Option(help="Where a bare callable's ALiBi counts from, by default the corner of is_causal."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Where the tensors are put, by torch's name; cpu by default.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Worker processes; 0 is one a core, at most 4.")] = 0,
    timeout: Annotated[int, typer.Option(min=1, help="Seconds for one case.")] = 120,
    memory: Annotated[
        float | None, typer.Option(min=0.5, help="GiB for one worker process; default: its share of what is free.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write a report of JSON lines.")] = None,
    shard: Annotated[str, typer.Option(help="Only part I of N, as I/N.")] = "1/1",
    seed: Annotated[str, typer.Option(help="Seed of what is drawn: a number, or `random`.")] = "0",
    expectations: Annotated[
        str | None,
        typer.Option(help="A file of recorded deviations, or `registered` for those shipped with a backend."),
    ] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first failure.")] = False,
    sanitize: Annotated[
        str | None, typer.Option(help="Run a CUDA kernel on the CPU under a sanitizer: thread or address.")
    ] = None,
) -> None:
    """Validate a kernel against the spec. Exit 0: conformant, or deviates only as recorded; 1: not conformant; 2:
    could not be judged."""
    from attnspec.conformance.selection import Selection
    from attnspec.conformance.selection import shard as parsed
    from attnspec.conformance.terminal import SHOWN_FAILURES, Screen, summary
    from attnspec.conformance.validate import Run
    from attnspec.conformance.validate import validate as run_validation

    several = {
        name: tuple(dict.fromkeys(given or ()))
        for name, given in (("p", profile), ("r", rule), ("d", dtype), ("c", case))
    }
    selection = Selection(level, several["p"], several["r"], several["d"], several["c"], parsed(shard), _seed(seed))
    selection.cases()  # bad options are told before anything starts
    run = Run(
        target,
        selection,
        accuracy,
        causal_alignment,
        device,
        jobs,
        timeout,
        memory,
        fail_fast,
        _expectations(expectations, target),
        report,
        ("attnspec", *sys.argv[1:]),
        sanitize,
        alibi_alignment,
    )
    with Screen(target, 1 if fail_fast else SHOWN_FAILURES) as screen:
        validation = run_validation(run, screen)
    summary(validation)
    raise typer.Exit(validation.verdict.exit_code)


def _seed(text: str) -> int:
    if text == "random":
        chosen = secrets.randbelow(2**31)
        typer.echo(f"seed {chosen}", err=True)
        return chosen
    if not text.isdecimal() or int(text) >= 2**31:
        raise InputError(f"seed {text!r}: use a number below 2^31, or `random`")
    return int(text)


def _expectations(asked: str | None, target: str) -> Path | None:
    if asked != "registered":
        return Path(asked) if asked else None
    from attnspec.implementations.registry import expectations_path

    path = expectations_path(target)
    if path is None:
        raise InputError(f"no deviations of {target!r} are recorded: leave out --expectations registered")
    return path


@app.command()
def matrix(
    backends: Annotated[
        str | None, typer.Option(help="Names with commas between; default: every available backend.")
    ] = None,
    level: Annotated[str, typer.Option(help="quick or full.")] = "quick",
    jobs: Annotated[int, typer.Option(min=0, help="Worker processes; 0 is one a core, at most 4.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A folder for the table in Markdown and a report a backend.")] = None,
) -> None:
    """Validate several backends, recorded deviations applied, and print the table of rules and backends.

    Exit 0: each is conformant or deviates only as recorded; 1: one does not; 2: could not be judged.
    """
    from attnspec.conformance.matrix_run import run_matrix

    names = None if backends is None else list(dict.fromkeys(name.strip() for name in backends.split(",")))
    raise typer.Exit(run_matrix(names, level, jobs, out))


@list_app.command("backends")
def list_backends(as_json: Json = False) -> None:
    """List the registered backends and whether they can run here."""
    from attnspec.implementations.registry import backend_names, status

    _show([{"name": name, "status": status(name)} for name in backend_names()], as_json)


@list_app.command("profiles")
def list_profiles(as_json: Json = False) -> None:
    """List the profiles."""
    from attnspec.spec.profiles import PROFILES

    _show([{"name": p.name, "summary": p.summary} for p in PROFILES.values()], as_json)


@list_app.command("rules")
def list_rules(as_json: Json = False) -> None:
    """List the rules, with the checks that enforce each."""
    from attnspec.conformance.show import rules_with_checks

    _show(rules_with_checks(), as_json)


@list_app.command("cases")
def list_cases(
    level: Annotated[str, typer.Option(help="quick or full.")] = "quick",
    profile: Annotated[list[str] | None, typer.Option(help="Only cases of this profile; may be repeated.")] = None,
    rule: Annotated[list[str] | None, typer.Option(help="Only cases that enforce this rule; may be repeated.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only cases of this dtype; may be repeated.")] = None,
    as_json: Json = False,
) -> None:
    """List the cases of a level."""
    from attnspec.conformance.selection import Selection

    chosen = Selection(level, tuple(profile or ()), tuple(rule or ()), tuple(dtype or ())).cases()
    if as_json:
        _show([{"id": c.id, "family": c.family, "rules": c.rules, "profiles": c.profiles} for c in chosen], True)
    else:
        typer.echo("\n".join(case.id for case in chosen))


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="RULE|CASE", help="A rule's id or a case.")],
    as_json: Json = False,
) -> None:
    """Show a rule's text and what enforces it, or what a case does."""
    from attnspec.conformance.show import facts_of

    facts = facts_of(name)
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    from attnspec.conformance.failure_screen import row

    for label, value in facts.items():
        typer.echo(row(label, ", ".join(value) if isinstance(value, list) else str(value)))


def _show(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    from attnspec.conformance.terminal import grid

    cells = [tuple(", ".join(v) if isinstance(v, list) else str(v) for v in line.values()) for line in rows]
    grid(tuple(rows[0]), cells)


if __name__ == "__main__":
    main()
