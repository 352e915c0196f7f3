"""Faults of what comes back: dtype, shape, type, empty lengths, and calls that should have been refused."""

from mutants.house import Mutant

DTYPE, SHAPE, TYPE, EMPTY = (
    "contract.output-dtype", "contract.output-shape", "contract.output-type", "attention.zero-length",
)  # fmt: skip
FORM = "none public: caught by any test that looks"
ZERO = "varlen-or-paged/zero-length-kv"
PERMUTED = "tail-tile-or-block-multiple/output-permuted"

STORE = "output = output.to(query.dtype)"  # of `plain`
RETURN = "return (output, lse) if return_lse else output"
LSE = "lse = (top + torch.log(total)).squeeze(-1)"

MUTANTS = (
    Mutant("output-in-float32", "plain", STORE, "output = output.to(wide)", FORM, DTYPE),
    Mutant("output-in-float32-with-a-bias", "plain", STORE,
           "output = output.to(wide if attn_mask is not None and attn_mask.dtype != torch.bool else query.dtype)",
           "none public: type promotion by a float mask", DTYPE),
    Mutant("output-in-bfloat16-for-float16", "plain", STORE,
           "output = output.to(torch.bfloat16 if query.dtype == torch.float16 else query.dtype)", FORM, DTYPE),
    Mutant("output-length-first", "plain", STORE, f"{STORE}.transpose(1, 2)", PERMUTED, SHAPE),
    Mutant("output-length-first-where-square", "plain", STORE,
           f"{STORE}\n    output = output.transpose(1, 2) if q_len == query.shape[1] else output", PERMUTED,
           "notation.layout"),
    Mutant("output-without-the-one-query", "plain", STORE, f"{STORE}\n    output = output.squeeze(2)", FORM, SHAPE),
    Mutant("output-with-padded-dim", "padded", "output = output[..., :q_len, :value_dim]",
           "output = output[..., :q_len, : -(-value_dim // 8) * 8]", FORM, SHAPE),
    Mutant("output-with-padded-length", "padded", "output = output[..., :q_len, :value_dim]",
           "output = output[..., : -(-q_len // 8) * 8, :value_dim]", FORM, SHAPE),
    Mutant("lse-with-a-last-dim", "plain", LSE, "lse = top + torch.log(total)", FORM, SHAPE),
    Mutant("lse-length-first", "plain", LSE, f"{LSE}.transpose(1, 2)",
           "none public: the layout of varlen interfaces", SHAPE),
    Mutant("lse-padded-to-a-tile", "plain", LSE, f"{LSE}\n    lse = torch.nn.functional.pad(lse, (0, -q_len % 32))",
           "none public: the buffer of a backward pass", SHAPE),
    Mutant("lse-always-returned", "plain", RETURN, "return output, lse", FORM, TYPE),
    Mutant("lse-never-returned", "plain", RETURN, "return output", "scale-softcap-bias/silently-ignored-argument",
           TYPE),
    Mutant("lse-first", "plain", RETURN, "return (lse, output) if return_lse else output", FORM, SHAPE),
    Mutant("a-list-comes-back", "plain", RETURN, "return [output, lse] if return_lse else output", FORM, TYPE),
    Mutant("an-array-comes-back", "plain", RETURN,
           "return (output, lse) if return_lse else output.float().numpy()", FORM, TYPE),
    Mutant("no-keys-give-nan", "plain", STORE, f"output = output if k_len else output + torch.nan\n    {STORE}", ZERO,
           EMPTY),
    Mutant("no-keys-give-one", "plain", STORE, f"output = output if k_len else output + 1\n    {STORE}", ZERO, EMPTY),
    Mutant("no-keys-give-lse-0", "plain", LSE, f"{LSE}\n    lse = lse if k_len else torch.zeros_like(lse)", ZERO,
           EMPTY),
    Mutant("no-keys-give-no-rows", "plain", STORE, f"{STORE}\n    output = output if k_len else output[:, :, :0]",
           ZERO, SHAPE),
    Mutant("no-queries-give-one-row", "plain", STORE,
           f"{STORE}\n    output = output if q_len else output.new_zeros((*query.shape[:2], 1, value.shape[-1]))",
           ZERO, SHAPE),
    Mutant("longer-query-dim-is-cut", "plain", "key.shape[3] == query.shape[3]", "key.shape[3] <= query.shape[3]",
           "validation-or-degenerate/len-k-ne-len-v", "notation.shapes",
           also=(("query.to(wide) @ key", "query.to(wide)[..., : key.shape[3]] @ key"),)),
    Mutant("output-on-another-device", "plain", STORE, 'output = output.to(query.dtype).to("meta")',
           "none public: a result that stays where it was made", "contract.output-device"),
    Mutant("refuses-unequal-lengths", "plain", STORE,
           f"if q_len != k_len:\n        raise NotImplementedError('lengths must be equal')\n    {STORE}",
           "causal-geometry/qlen-ne-klen", "profile.core"),
    Mutant("raises-on-what-it-declares", "declared", "        output, lse = plain.attention",
           "        if query.shape[2] == 1:\n            raise NotImplementedError('one query is not supported')\n"
           "        output, lse = plain.attention",
           "validation-or-degenerate/unsupported-but-declared", "contract.declared-runs",
           also=(("attention_base_two, attention_any", "attention, attention_any"),)),
    Mutant("refused-then-half-done", "paths", 'raise NotImplementedError("no keys are not supported")',
           'STATE.append(1)\n        raise NotImplementedError("no keys are not supported")',
           "race-or-nondeterminism/race", "contract.refusal",
           also=(("import torch\n", "import torch\n\nSTATE = []\n"),
                 ("weights = torch.exp(scores - top)\n", "weights = torch.exp(scores - top)\n"
                  "    weights[..., -1:] *= 0.5 if STATE else 1.0\n    STATE.clear()\n"))),
)  # fmt: skip
