"""Holding what is no attention kernel to the golden vectors. A module a form: how a target is called, and its error
budget (chapter "accuracy"). `hold` runs the cases, `refusals` the calls that must be refused."""
