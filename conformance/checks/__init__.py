"""The bodies of the checks, a module a family; `attnspec.conformance.catalogue` lists them with their rules and cases.

A body takes the kernel and the case, returns the error as a multiple of its budget (None where it has none), and
raises Violation or NotSupported.
"""
