"""The spec room: the normative text, the JSON Schemas, and the vocabulary in code. Imports nothing of ours."""

SPEC_VERSION = "0.1"
