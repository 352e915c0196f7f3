"""The implementations room: the backends, one module each, and the registry that finds them.

A backend says what it can do (`attnspec.spec.capabilities`) and is called as `attnspec.spec.call.Call` says. Backends
import nothing of ours but `spec`, and `reference` only to expose it; each has its own mask code, so that one mistake is
not made by all. Optional frameworks are imported late: where one is missing, the backend is unavailable and says why.
Backends of others join through the entry-point group `attnspec.backends`.
"""
