"""The source article's module, with d_k and d_v of their own, and slots that are masked exactly."""

import math

import torch


class target(torch.nn.Module):
    def __init__(self, d_model, num_heads, bias=True, d_k=None, d_v=None, kdim=None, vdim=None, num_kv_heads=None):
        super().__init__()
        self.d_model, self.num_heads, self.num_kv_heads = d_model, num_heads, num_kv_heads or num_heads
        self.d_k, self.d_v = d_k or d_model // num_heads, d_v or d_model // num_heads
        self.w_q = torch.nn.Linear(d_model, num_heads * self.d_k, bias=bias)
        self.w_k = torch.nn.Linear(kdim or d_model, self.num_kv_heads * self.d_k, bias=bias)
        self.w_v = torch.nn.Linear(vdim or d_model, self.num_kv_heads * self.d_v, bias=bias)
        self.w_o = torch.nn.Linear(num_heads * self.d_v, d_model, bias=bias)

    def split(self, tokens, heads, dim):
        return tokens.view(tokens.shape[0], tokens.shape[1], heads, dim).transpose(1, 2)

    def expand(self, heads):
        return heads.repeat_interleave(self.num_heads // self.num_kv_heads, 1)

    def forward(self, q, k, v, mask=None):
        query = self.split(self.w_q(q), self.num_heads, self.d_k)  # (batch, num_heads, q_len, d_k)
        key = self.expand(self.split(self.w_k(k), self.num_kv_heads, self.d_k))
        value = self.expand(self.split(self.w_v(v), self.num_kv_heads, self.d_v))
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.d_k)  # (batch, num_heads, q_len, k_len)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -torch.inf)
        empty = (scores == -torch.inf).all(-1, keepdim=True)
        weights = torch.softmax(scores, -1).masked_fill(empty, 0.0)
        heads = weights @ value
        joined = heads.transpose(1, 2).reshape(q.shape[0], q.shape[1], -1)  # (batch, q_len, num_heads * d_v)
        return self.w_o(joined)
