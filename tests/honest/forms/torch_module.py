"""torch.nn.MultiheadAttention with the parameters of a case, its masks and its words; what it cannot do it refuses."""

import torch


def target(query, key, value, mask=None, *, parameters, num_heads):
    d_model = query.shape[-1]
    bias = "w_q.bias" in parameters
    widths = {name: len(parameters[f"{name}.weight"]) for name in ("w_q", "w_k", "w_v")}
    if set(widths.values()) != {d_model}:
        raise NotImplementedError("d_k and d_v are d_model / num_heads")
    module = torch.nn.MultiheadAttention(
        d_model, num_heads, bias=bias, kdim=key.shape[-1], vdim=value.shape[-1], batch_first=True, dtype=query.dtype
    )
    load(module, parameters, bias)
    dropped = None
    if mask is not None:  # True drops in torch's module
        shape = (query.shape[0], num_heads, query.shape[1], key.shape[1])
        dropped = (mask == 0).expand(shape).reshape(-1, *shape[2:])
    return module.eval()(query, key, value, attn_mask=dropped, need_weights=False)[0]


def load(module, parameters, bias):
    weights = [parameters[f"{name}.weight"] for name in ("w_q", "w_k", "w_v")]
    if module.in_proj_weight is not None:
        module.in_proj_weight.copy_(torch.cat(weights))
    else:
        for name, weight in zip(("q", "k", "v"), weights, strict=True):
            getattr(module, f"{name}_proj_weight").copy_(weight)
    module.out_proj.weight.copy_(parameters["w_o.weight"])
    if bias:
        module.in_proj_bias.copy_(torch.cat([parameters[f"{name}.bias"] for name in ("w_q", "w_k", "w_v")]))
        module.out_proj.bias.copy_(parameters["w_o.bias"])
