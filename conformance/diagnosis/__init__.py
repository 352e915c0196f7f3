"""Diagnosis: which known mistake reproduces a kernel's wrong result.

`steps` is attention as a chain of replaceable steps; `mistakes` is the catalogue, each mistake one replaced step;
`fit` decides whether a mistake reproduces a result; `diagnose` puts a name to a failing case. `backward` holds the
steps and mistakes of a backward pass.
"""
