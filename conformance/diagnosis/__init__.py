"""Diagnosis: which known mistake reproduces a kernel's wrong result.

`diagnose` puts a name to a failing case: `recorder` runs its check once more, `evidence` compares what the kernel gave
with what is right, `fit` decides whether a mistake reproduces it, and the problems of the `battery` tell apart the
mistakes that are left. `session` keeps what is known of a kernel.

`steps` is attention as a chain of replaceable steps; `mistakes` is the catalogue, each mistake one replaced step;
`broken` says which rule a mistake breaks. `backward` holds what a backward pass has of its own: steps, mistakes and
evidence.
"""
