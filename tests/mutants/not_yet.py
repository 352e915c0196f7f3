"""What the suite cannot do yet, and why. An entry that has become untrue fails its test: strike it out, or run
`python tests/mutants/kill_matrix.py --update`, which rewrites this file and keeps the reasons that still hold.
"""

# ruff: noqa: E501 (a reason is one line)

from __future__ import annotations

NOT_YET: dict[str, str] = {
    "one-query-batch-is-broadcast": "survives: needs a check that query batch 1 with key batch B is refused, which torch_sdpa.math does not do",
    "one-value-head-is-enough": "survives: needs a check that key and value of other heads are refused, which torch_sdpa.math does not do",
    "refused-then-half-done": "survives: needs a refused call with no keys, then a right call",
    "one-key-returns-the-value-itself": "the base copies the value first, so that the caller's memory is not handed out: to be planted in another base",
    "result-remembered-by-address": "the base copies key and value first, so that no address comes back: to be planted in another base",
}
ACCUSED: dict[str, str] = {}
