"""The reference room: attention as documented, in float64, one module a concept; and `exact`, a second oracle.

Nothing here is fast. Speed lives in the implementations.
"""
