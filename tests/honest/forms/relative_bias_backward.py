"""The bias of T5 with a backward pass of its own: the gradient of the table by one product with the slots of each
bucket, in float32, float64 for float64, stored once."""

import torch


def target(table, q_len, k_len, *, max_distance=128, bidirectional=True, alignment="upper_left"):
    num_buckets = len(table)
    if bidirectional and num_buckets % 2:
        raise ValueError("an odd table for two directions")
    count = num_buckets // 2 if bidirectional else num_buckets
    exact, later = count // 2, count - count // 2
    if exact < 1 or max_distance <= exact:
        raise ValueError("too few buckets, or a short max_distance")
    first = k_len - q_len if alignment == "lower_right" else 0
    distance = torch.arange(k_len) - torch.arange(q_len)[:, None] - first  # (q_len, k_len)
    far = distance.abs() if bidirectional else (-distance).clamp(min=0)
    found = far.clamp(max=exact)
    for step in range(1, later):
        beyond = [[x**later * exact**step >= max_distance**step * exact**later for x in row] for row in far.tolist()]
        found = found + torch.tensor(beyond, dtype=torch.int64).view(far.shape)
    places = found + count * (distance > 0) if bidirectional else found
    return Bias.apply(table, places)


class Bias(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, places):
        ctx.save_for_backward(places)
        ctx.num_buckets = len(table)
        return table[places].permute(2, 0, 1)[None]  # (1, heads, q_len, k_len)

    @staticmethod
    def backward(ctx, grad_bias):
        (places,) = ctx.saved_tensors
        wide = torch.promote_types(grad_bias.dtype, torch.float32)
        reads = (places[..., None] == torch.arange(ctx.num_buckets)).to(wide)  # (q_len, k_len, num_buckets)
        summed = torch.einsum("bhik,ikn->nh", grad_bias.to(wide), reads)
        return summed.to(grad_bias.dtype), None
