"""Chapters and rules: their form, and that what they mention exists."""

from __future__ import annotations

import importlib
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from attnspec.spec import rules
from attnspec.spec.capabilities import Capabilities
from attnspec.spec.errors import InputError
from attnspec.spec.profiles import PROFILES

ROOT = Path(__file__).parent.parent
ROOMS = ("spec", "reference", "golden", "conformance", "implementations")
PREFIXES = {  # chapter: the first words of its rules
    "notation": "notation",
    "attention": "attention",
    "masks": "mask",
    "softmax": "softmax",
    "grouped-heads": "grouped",
    "kv-cache": ("key-lengths", "kv-cache"),
    "window": "window",
    "sinks": "sinks",
    "packed": "packed",
    "paged": "paged",
    "quantised": "quantised",
    "rope": "rope",
    "position-bias": ("alibi", "relative-bias"),
    "document-masks": ("document-mask", "prefix-lm"),
    "softcap": "softcap",
    "flash-attention": "flash",
    "context-parallel": "context-parallel",
    "latent": "latent",
    "multi-head": "multi-head",
    "additive-attention": "additive",
    "dropout": "dropout",
    "backward": "backward",
    "accuracy": "accuracy",
    "contract": "contract",
    "profiles": "profile",
}
RULE_ID = re.compile(r"[a-z]+(-[a-z]+)*\.[a-z0-9]+(-[a-z0-9]+)*")
WORDS = [word for words in PREFIXES.values() for word in ([words] if isinstance(words, str) else words)]
MENTION = re.compile(rf"`((?:{'|'.join(WORDS)})\.[a-z0-9-]+)`")
MODULE = re.compile(r"`attnspec\.((?:spec|reference|golden)\.[A-Za-z_.]+)`")


def test_every_heading_of_a_rule_is_read_as_one() -> None:
    headings = [
        line for chapter in rules.CHAPTERS for line in re.findall(r"^###.*$", rules.chapter_text(chapter), re.M)
    ]
    assert headings == [f"### {rule_id}" for rule_id in rules.all_rules()]


def test_every_markdown_file_of_the_spec_is_a_chapter() -> None:
    assert {path.stem for path in (ROOT / "spec").glob("*.md")} == set(rules.CHAPTERS)


def test_rule_ids_are_well_formed_and_fit_their_chapter() -> None:
    for rule in rules.all_rules().values():
        assert RULE_ID.fullmatch(rule.id), rule.id
        assert rule.id.partition(".")[0] in PREFIXES[rule.chapter], f"{rule.id} stands in chapter {rule.chapter}"


def test_the_parser_rejects_two_strengths_and_a_second_rule_of_one_id(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, complaint in (
        ("### mask.x\nIt **MUST** or **MAY**.\n", "2 bold strengths"),
        ("### mask.x\nIt is.\n\nIt **MUST**.\n", "0 bold strengths"),
        ("### mask.x\nIt **MUST**.\n\n### mask.x\nIt **MAY**.\n", "stands twice"),
    ):
        monkeypatch.setattr(rules, "CHAPTERS", ("masks",))
        monkeypatch.setattr(rules, "chapter_text", lambda chapter, text=text: text)
        with pytest.raises(ValueError, match=complaint):
            rules.all_rules.__wrapped__()


@pytest.mark.parametrize("chapter", rules.CHAPTERS)
def test_bold_strengths_stand_in_rules_only(chapter: str) -> None:
    of_rules = [rule for rule in rules.all_rules().values() if rule.chapter == chapter]
    spare = 3 if chapter == "notation" else 0  # where the three words are defined
    assert len(rules.STRENGTH.findall(rules.chapter_text(chapter))) == len(of_rules) + spare


@pytest.mark.parametrize("chapter", rules.CHAPTERS)
def test_lines_of_a_chapter_fit_120_columns(chapter: str) -> None:
    prose = [line for line in rules.chapter_text(chapter).splitlines() if not line.startswith(("|", "    "))]
    assert [line for line in prose if len(line) > 120] == []


def test_every_rule_that_is_mentioned_exists() -> None:
    paths = [path for room in ROOMS for ending in ("py", "md") for path in (ROOT / room).rglob(f"*.{ending}")]
    known = rules.all_rules()
    dangling = [
        f"{path.relative_to(ROOT)}: {rule_id}"
        for path in sorted(paths)
        for rule_id in MENTION.findall(path.read_text(encoding="utf-8"))
        if rule_id not in known and not rule_id.endswith((".cu", ".cuh"))  # files
    ]
    assert dangling == []


@pytest.mark.parametrize("chapter", rules.CHAPTERS)
def test_code_that_a_chapter_links_exists(chapter: str) -> None:
    for path in MODULE.findall(rules.chapter_text(chapter)):
        assert resolves(f"attnspec.{path}"), f"{chapter}.md links {path}"


def resolves(path: str) -> bool:
    """Whether a dotted path leads to a module or to an attribute of one."""
    found: Any = importlib.import_module("attnspec.spec")
    parts = path.split(".")
    for end in range(2, len(parts) + 1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            if not hasattr(found, parts[end - 1]):
                return False
            found = getattr(found, parts[end - 1])
    return True


def test_an_unknown_rule_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"unknown rule 'mask\.nothing'"):
        rules.rule("mask.nothing")


def test_chapters_name_every_profile_and_every_capability() -> None:
    table_of_profiles = re.findall(r"^\| `([a-z]+)` \|", rules.chapter_text("profiles"), re.M)
    table_of_capabilities = re.findall(r"^\| `([a-z_]+)` \|", rules.chapter_text("contract"), re.M)
    assert table_of_profiles == list(PROFILES)
    assert table_of_capabilities == [field.name for field in fields(Capabilities)]
