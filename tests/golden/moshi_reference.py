"""A second, independent Moshi in float64: explicit masks, no cache, written from its description.

It gives the values that the authors' package cannot give (a window with attention sinks) and
measures the package's own rounding.
"""

import math

import torch
import torch.nn.functional as F


def column(cfg, frames, t):
    """Column t of the delayed sequence, of frames [n][1 + n_q]."""
    initial = [cfg["text_card"]] + [cfg["card"]] * cfg["n_q"]
    return [
        initial[k] if t - 1 - d < 0 else frames[t - 1 - d][k] for k, d in enumerate(cfg["delays"])
    ]


def rows(table, ids):
    """Embeddings of ids, nothing for -1."""
    ids = torch.tensor(ids)
    return torch.where((ids < 0)[:, None], 0.0, table[ids.clamp(min=0)])


def rms_norm(w, name, x):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-8) * w[name + ".alpha"].flatten()


def gated(w, name, x):
    a, b = F.linear(x, w[name + ".linear_in.weight"]).chunk(2, dim=-1)
    return F.linear(F.silu(a) * b, w[name + ".linear_out.weight"])


def rotate(x, pos, period):
    """Turn neighbouring pairs of x [heads, n, hd] by positions [n]."""
    half = x.shape[-1] // 2
    angle = pos[:, None].double() * period ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = x[..., 0::2], x[..., 1::2]
    c, s = angle.cos(), angle.sin()
    return torch.stack([a * c - b * s, a * s + b * c], dim=-1).flatten(-2)


def projections(w, layer, sets, k):
    """Weight set k of `sets` of the attention, stored fused or apart."""
    out = []
    for fused, apart in ("in_proj_weight", "in_projs"), ("out_proj.weight", "out_projs"):
        name = f"{layer}.self_attn.{fused}"
        if name in w:
            out.append(w[name].chunk(sets)[k])
        else:
            out.append(w[f"{layer}.self_attn.{apart}.{k}.weight"])
    return out


def main(w, cfg, x, window=None, sinks=0, rope="absolute"):
    """out_norm of the main transformer for inputs x [n, dim]; the mask as for the text models."""
    n, heads, period = len(x), cfg["num_heads"], cfg["max_period"]
    pos = torch.arange(n)
    i, j = pos[:, None], pos[None, :]
    window = cfg["context"] if window is None else window
    seen = (j <= i) & ((j < sinks) | (i - j < window))
    shift = (pos - window + 1 - sinks).clamp(min=0)
    for layer in range(cfg["num_layers"]):
        p = f"transformer.layers.{layer}"
        w_in, w_out = projections(w, p, 1, 0)
        q, k, v = (
            t.view(n, heads, -1).transpose(0, 1)
            for t in F.linear(rms_norm(w, p + ".norm1", x), w_in).chunk(3, dim=-1)
        )
        q = rotate(q, pos, period)
        score = q @ rotate(k, pos, period).mT
        if rope == "cache":
            for s in range(min(sinks, n)):
                key = rotate(k[:, s : s + 1].expand(-1, n, -1), s + shift, period)
                score[:, :, s] = (q * key).sum(-1)
        score = (score / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)
        x = x + F.linear((score.softmax(-1) @ v).transpose(0, 1).reshape(n, -1), w_out)
        x = x + gated(w, p + ".gating", rms_norm(w, p + ".norm2", x))
    return rms_norm(w, "out_norm", x)


def depth(w, cfg, h, text, codes):
    """Logits [n, dep_q, card] from h [n, dim], text tokens [n] and codes [n][dep_q]."""
    n, steps, heads = len(h), cfg["dep_q"], cfg["depformer_num_heads"]
    u = []
    for k in range(steps):
        name = "depformer_text_emb" if k == 0 else f"depformer_emb.{k - 1}"
        ids = text if k == 0 else [c[k - 1] for c in codes]
        u.append(F.linear(h, w[f"depformer_in.{k}.weight"]) + rows(w[name + ".weight"], ids))
    x = torch.stack(u, dim=1)
    mask = torch.ones(steps, steps, dtype=torch.bool).tril()
    for layer in range(cfg["depformer_num_layers"]):
        p = f"depformer.layers.{layer}"
        sets = [projections(w, p, steps, k) for k in range(steps)]
        y = rms_norm(w, p + ".norm1", x)
        qkv = torch.stack([F.linear(y[:, k], sets[k][0]) for k in range(steps)], dim=1)
        q, k_, v = (
            t.view(n, steps, heads, -1).transpose(1, 2) for t in qkv.chunk(3, dim=-1)
        )
        score = (q @ k_.mT / math.sqrt(q.shape[-1])).masked_fill(~mask, -math.inf)
        a = (score.softmax(-1) @ v).transpose(1, 2).reshape(n, steps, -1)
        x = x + torch.stack([F.linear(a[:, k], sets[k][1]) for k in range(steps)], dim=1)
        y = rms_norm(w, p + ".norm2", x)
        x = x + torch.stack([gated(w, f"{p}.gating.{k}", y[:, k]) for k in range(steps)], dim=1)
    return torch.stack(
        [F.linear(x[:, k], w[f"linears.{k}.weight"]) for k in range(steps)], dim=1
    )


def teacher(w, cfg, frames, **kv):
    """Log-probs of every step: text [n, text_card], codes [n, dep_q, card]."""
    n, made = len(frames), cfg["dep_q"]
    columns = [column(cfg, frames, t) for t in range(n + 1)]
    x = rows(w["text_emb.weight"], [c[0] for c in columns[:n]])
    for k in range(cfg["n_q"]):
        x = x + rows(w[f"emb.{k}.weight"], [c[1 + k] for c in columns[:n]])
    h = main(w, cfg, x, **kv)
    text = F.linear(h, w["text_linear.weight"])
    codes = depth(w, cfg, h, [c[0] for c in columns[1:]], [c[1 : 1 + made] for c in columns[1:]])
    return text.log_softmax(-1), codes.log_softmax(-1)
