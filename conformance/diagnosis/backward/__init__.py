"""Diagnosis of gradients: which known mistake of a backward pass reproduces them, where the forward pass is right."""
