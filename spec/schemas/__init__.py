"""The JSON Schemas (draft 2020-12) of everything that attnspec reads or writes as JSON or TOML."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from attnspec.spec.errors import InputError

NAMES = ("case", "form-case", "golden-manifest", "capabilities", "report", "expectations", "cuda-launch")


@cache
def schema(name: str) -> dict[str, Any]:
    """Return the schema called `name`, one of `NAMES`."""
    text = Path(__file__).with_name(f"{name}.schema.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def check(data: object, name: str, where: object) -> None:
    """Raise InputError, in one line, where `data` (from `where`) breaks the schema called `name`."""
    from jsonschema.exceptions import best_match

    error = best_match(_validator(name).iter_errors(data))
    if error is not None:
        place = error.json_path.removeprefix("$").lstrip(".") or "the whole"
        raise InputError(f"{where}: {place}: {error.message[:200]} (schema {name!r})")


@cache
def _validator(name: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(schema(name))


def load(path: Path, name: str) -> Any:
    """Return the JSON of a file that follows the schema called `name`. Raises InputError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise InputError(f"{path}: is not UTF-8 text") from None
    return parse(text, name, path)


def parse(text: str, name: str, where: object) -> Any:
    """Return the JSON of a text that follows the schema called `name`. Raises InputError; NaN and Infinity are not
    JSON."""
    try:
        data = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: is not JSON ({error})") from None
    check(data, name, where)
    return data


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")
