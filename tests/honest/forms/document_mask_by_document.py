"""The mask of documents, a document after the other: its queries see its keys."""

import torch


def target(query_documents, key_documents, *, is_causal=False):
    (batch, q_len), k_len = query_documents.shape, key_documents.shape[1]
    mask = torch.zeros(batch, 1, q_len, k_len, dtype=torch.bool)
    for b in range(batch):
        for document in query_documents[b].unique().tolist():
            if document < 0:
                continue
            rows = (query_documents[b] == document).nonzero()[:, 0]
            keys = (key_documents[b] == document).nonzero()[:, 0]
            for row in rows.tolist():
                seen = keys[keys <= row] if is_causal else keys
                mask[b, 0, row, seen] = True
    return mask
