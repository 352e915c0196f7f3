"""What the suite cannot do yet, and why. An entry that has become untrue fails its test: strike it out, or run
`python tests/mutants/kill_matrix.py --update`, which rewrites this file and keeps the reasons that still hold.
"""

from __future__ import annotations

NOT_YET: dict[str, str] = {}
ACCUSED: dict[str, str] = {}
