"""FlashAttention in Triton, forward and backward."""
