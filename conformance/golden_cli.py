"""The commands `attnspec golden ...`: check, regenerate, list and compare the certified vectors, and hold a target that
is no attention kernel to those of its form."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from attnspec.spec.errors import InputError, did_you_mean

golden_app = typer.Typer(help="The certified vectors: check, regenerate, compare, hold.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for a program to read.")]
Folder = Annotated[Path, typer.Argument(help="A folder of vectors.")]
StoredFolder = Annotated[Path | None, typer.Argument(help="A folder of vectors; default: where they are stored.")]
Form = Annotated[str, typer.Option(help="One of those that `golden list` shows.")]


@golden_app.command("check")
def golden_check(folder: StoredFolder = None, as_json: Json = False) -> None:
    """Check schema, hashes, shapes and numbers of the stored vectors, in seconds."""
    from attnspec.golden.files import VECTORS
    from attnspec.golden.store import check

    count = check(folder or VECTORS)
    typer.echo(json.dumps({"cases": count}) if as_json else f"{count} cases are whole")


@golden_app.command("regenerate")
def golden_regenerate(
    out: Annotated[Path | None, typer.Option(help="Folder for the vectors; default: where they are stored.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Recompute, compare bytes, write nothing.")] = False,
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0 is one a core.")] = 0,
) -> None:
    """Compute every certified vector anew."""
    from attnspec.conformance.terminal import steps
    from attnspec.golden.files import VECTORS
    from attnspec.golden.regenerate import regenerate, stale

    folder = out or VECTORS
    if out is None and not check and not (VECTORS.parents[1] / "pyproject.toml").is_file():
        raise InputError(
            "golden regenerate would overwrite the installed vectors: name a folder with --out, or --check"
        )
    with steps("golden vectors") as progress:
        if check:
            differing = stale(folder, jobs or None, progress)
        else:
            count = regenerate(folder, jobs or None, progress)
    if not check:
        typer.echo(f"{count} cases written to {folder}")
        return
    for line in differing:
        typer.echo(line)
    typer.echo(f"{len(differing)} files differ" if differing else "every file is byte for byte the same")
    raise typer.Exit(1 if differing else 0)


@golden_app.command("diff")
def golden_diff(a: Folder, b: Folder, as_json: Json = False) -> None:
    """Compare two folders of vectors. Exit 0: the same; 1: different."""
    from attnspec.golden.difference import diff

    lines = diff(a, b)
    typer.echo(json.dumps(lines, indent=1) if as_json else "\n".join(lines) or "no difference")
    raise typer.Exit(1 if lines else 0)


@golden_app.command("list")
def golden_list(
    form: Annotated[str | None, typer.Option(help="Only the cases of this form.")] = None,
    as_json: Json = False,
) -> None:
    """List the stored cases with their forms and problems, and the calls of a form that must be refused."""
    from attnspec.conformance.forms.hold import REFUSALS
    from attnspec.golden.regenerate import ALL_CASES, form_of

    rows = [{"name": c.name, "form": form_of(c), "problem": str(c.problem)} for c in ALL_CASES]
    rows += [{"name": name, "form": of, "problem": f"refused: {call.what}"} for name, (of, call) in REFUSALS.items()]
    chosen = [row for row in rows if form in (None, row["form"])]
    if not chosen:
        known = list(dict.fromkeys(row["form"] for row in rows))
        raise InputError(f"no case has form {form!r}: use {', '.join(known)}{did_you_mean(form or '', known)}")
    typer.echo(json.dumps(chosen, indent=1) if as_json else "\n".join("  ".join(row.values()) for row in chosen))


@golden_app.command("hold")
def golden_hold(
    target: Annotated[str, typer.Argument(help="package.module:attr or path/to/file.py:attr.")],
    form: Form,
    case: Annotated[list[str] | None, typer.Option(help="Only this case; may be repeated.")] = None,
    accuracy: Annotated[str, typer.Option(help="Error budget: fused or eager.")] = "fused",
    as_json: Json = False,
) -> None:
    """Hold a target that is no attention kernel to the vectors of its form, and to the calls that it must refuse.

    The target runs in this process. Exit 0: every case that it supports passes; 1: one fails; 2: could not be judged.
    """
    from attnspec.conformance.failure_screen import row
    from attnspec.conformance.forms.hold import hold, statement, to_json
    from attnspec.conformance.targets import load_form_target
    from attnspec.spec.rules import rule

    results = list(hold(load_form_target(target), form, accuracy, tuple(case or ())))
    said, code = statement(results)
    if as_json:
        typer.echo(json.dumps({"statement": said, "cases": [to_json(held) for held in results]}, indent=1))
        raise typer.Exit(code)
    for held in results:
        if held.outcome == "not_supported":
            typer.echo(f"SKIP {held.case}: {held.what}")
        if held.outcome == "fail" and held.rule:
            typer.echo(f"FAIL {held.case}")
            broken = rule(held.rule)
            again = shlex.join(["attnspec", "golden", "hold", target, "--form", form, "--case", held.case])
            again += f" --accuracy {accuracy}" if accuracy != "fused" else ""
            exercised = ", ".join(name for name in held.rules if name != broken.id)
            lines = [("rule", f"{broken.id} ({broken.strength}, chapter {broken.chapter})"), ("", broken.text)]
            lines += [("what", held.what), *held.details, ("exercises", exercised), ("rerun", again)]
            typer.echo("\n".join(row(label, text) for label, text in lines if text))
    typer.echo(f"{target}: {said}")
    raise typer.Exit(code)
