"""Holding what is no attention kernel to the golden vectors: merging, dropout with a given mask, the multi-head module,
additive attention, packed sequences, pages. A module a form: how a target is called, and its error budget (chapter
"accuracy")."""
