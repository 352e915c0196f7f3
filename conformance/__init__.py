"""The conformance room: checks, error budgets, comparison, reports, the pytest plugin and the command line."""

SUITE_VERSION = "0.1.0"
