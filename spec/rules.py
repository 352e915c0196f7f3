"""The rules, read out of the Markdown chapters.

A rule is a heading `### id` and the one paragraph under it, which says MUST, SHOULD or MAY in bold once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from attnspec.spec.errors import InputError

CHAPTERS = (  # file names without .md, in reading order
    "notation",
    "attention",
    "masks",
    "softmax",
    "grouped-heads",
    "backward",
    "accuracy",
    "contract",
    "profiles",
    "source-article",
)
HERE = Path(__file__).parent
RULE = re.compile(r"^### ([a-z][a-z0-9]*(?:[.-][a-z0-9]+)+)\n+(.+?)(?=\n\n|\n#|\Z)", re.MULTILINE | re.DOTALL)
STRENGTH = re.compile(r"\*\*(MUST|SHOULD|MAY)\*\*")


@dataclass(frozen=True)
class Rule:
    """One rule. id: permanent. strength: MUST, SHOULD or MAY. text: its paragraph, on one line."""

    id: str
    chapter: str
    strength: str
    text: str


@cache
def all_rules() -> dict[str, Rule]:
    """Return every rule by id, in reading order. Raises ValueError where a chapter breaks the form: a defect of
    ours."""
    rules: dict[str, Rule] = {}
    for chapter in CHAPTERS:
        for rule_id, paragraph in RULE.findall(chapter_text(chapter)):
            strengths = STRENGTH.findall(paragraph)
            if len(strengths) != 1:
                raise ValueError(f"{chapter}.md, rule {rule_id}: {len(strengths)} bold strengths; there must be one")
            if rule_id in rules:
                raise ValueError(f"{chapter}.md: rule {rule_id} stands twice")
            rules[rule_id] = Rule(rule_id, chapter, strengths[0], " ".join(paragraph.split()))
    return rules


def rule(rule_id: str) -> Rule:
    """Return one rule. Raises InputError for an id that no chapter has."""
    rules = all_rules()
    if rule_id not in rules:
        raise InputError(f"unknown rule {rule_id!r}: see `attnspec list rules`")
    return rules[rule_id]


def chapter_text(chapter: str) -> str:
    """Return a chapter's Markdown."""
    return (HERE / f"{chapter}.md").read_text(encoding="utf-8")
