"""The rules, read out of the Markdown chapters.

A rule is a heading `### id` and the one paragraph under it, which says MUST, SHOULD or MAY in bold once. A paragraph
`Not checked by a case: ...` after it says why the suite has no check for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from attnspec.spec.errors import InputError, did_you_mean

CHAPTERS = (  # file names without .md, in reading order
    "notation",
    "attention",
    "masks",
    "softmax",
    "grouped-heads",
    "kv-cache",
    "window",
    "sinks",
    "packed",
    "paged",
    "quantised",
    "rope",
    "position-bias",
    "document-masks",
    "softcap",
    "flash-attention",
    "context-parallel",
    "latent",
    "multi-head",
    "additive-attention",
    "dropout",
    "backward",
    "accuracy",
    "contract",
    "profiles",
    "source-article",
)
HERE = Path(__file__).parent
RULE = re.compile(r"^### ([a-z][a-z0-9]*(?:[.-][a-z0-9]+)+)\n+(.+?)(?=\n\n|\n#|\Z)", re.MULTILINE | re.DOTALL)
UNCHECKED = re.compile(r"\n+Not checked by a case: (.+?)(?=\n\n|\n#|\Z)", re.DOTALL)
STRENGTH = re.compile(r"\*\*(MUST|SHOULD|MAY)\*\*")


@dataclass(frozen=True)
class Rule:
    """One rule. id: permanent. strength: MUST, SHOULD or MAY. text: its paragraph, on one line. unchecked: why no case
    checks it, empty where cases do."""

    id: str
    chapter: str
    strength: str
    text: str
    unchecked: str = ""


@cache
def all_rules() -> dict[str, Rule]:
    """Return every rule by id, in reading order. Raises ValueError where a chapter breaks the form: a defect of
    ours."""
    rules: dict[str, Rule] = {}
    for chapter in CHAPTERS:
        text = chapter_text(chapter)
        for found in RULE.finditer(text):
            rule_id, paragraph = found.groups()
            reason = UNCHECKED.match(text, found.end())
            unchecked = " ".join(reason[1].split()) if reason else ""
            strengths = STRENGTH.findall(paragraph)
            if len(strengths) != 1:
                raise ValueError(f"{chapter}.md, rule {rule_id}: {len(strengths)} bold strengths; there must be one")
            if rule_id in rules:
                raise ValueError(f"{chapter}.md: rule {rule_id} stands twice")
            rules[rule_id] = Rule(rule_id, chapter, strengths[0], " ".join(paragraph.split()), unchecked)
    return rules


def rule(rule_id: str) -> Rule:
    """Return one rule. Raises InputError for an id that no chapter has."""
    rules = all_rules()
    if rule_id not in rules:
        raise InputError(f"unknown rule {rule_id!r}: see `attnspec list rules`{did_you_mean(rule_id, rules)}")
    return rules[rule_id]


def chapter_text(chapter: str) -> str:
    """Return a chapter's Markdown."""
    return (HERE / f"{chapter}.md").read_text(encoding="utf-8")
