"""A small thinker of Qwen2.5-Omni: audio tower and text model under the released names.

Written for training on a CPU: frames go through the tower in one batch, the tokens of all calls
through the text model's matrices in one, and attention goes call by call, with each call's own
window and sinks. The rules are metronome's: query i sees key j when j <= i and (j < sinks or
i - j < window); keys are rotated at their position, those of sinks so that they sit directly before
the window.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from sound import BANDS, COLUMNS
from task import VOCAB

WIDTH, EAR_LAYERS, EAR_HEADS, EAR_FFN = 128, 4, 4, 512
HIDDEN, LAYERS, HEADS, KV_HEADS, FFN = 192, 4, 6, 2, 448
HEAD = HIDDEN // HEADS
THETA, EPS = 1e6, 1e-6


class EarAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.v_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k_proj, self.out_proj = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = (
            p(x).view(n, t, EAR_HEADS, -1).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        # Written out: under bfloat16 the library's fused form takes five times as long here.
        a = (q * q.shape[-1] ** -0.5 @ k.mT).softmax(-1).to(v.dtype) @ v
        return self.out_proj(a.transpose(1, 2).reshape(n, t, WIDTH))


class EarLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.self_attn_layer_norm = EarAttention(), nn.LayerNorm(WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, EAR_FFN), nn.Linear(EAR_FFN, WIDTH)
        self.final_layer_norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        x = x + self.self_attn(self.self_attn_layer_norm(x))
        return x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))


def sinusoid(rows, d):
    scale = torch.exp(-math.log(10000) / (d // 2 - 1) * torch.arange(d // 2, dtype=torch.float64))
    angle = torch.arange(rows, dtype=torch.float64)[:, None] * scale
    return torch.cat([angle.sin(), angle.cos()], dim=1).float()


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(BANDS, WIDTH, 3, padding=1)
        self.conv2 = nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.layers = nn.ModuleList(EarLayer() for _ in range(EAR_LAYERS))
        self.ln_post, self.proj = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN)
        self.audio_bos_eos_token = nn.Embedding(2, HIDDEN)  # the release has it and does not use it
        self.register_buffer("places", sinusoid(COLUMNS // 2, WIDTH), persistent=False)

    def forward(self, mel):
        """mel [n, 128, 200] -> last layer [n, 100, WIDTH], audio rows [n, 50, HIDDEN]"""
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x)
        n, t, d = x.shape
        return x, self.proj(self.ln_post(x.view(n, t // 2, 2, d).mean(2)))


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        return F.rms_norm(x.float(), (HIDDEN,), self.weight, EPS)


def rotated(x, pos):
    """x [..., n, HEAD], pos [n]; computed in float32."""
    angle = pos[:, None].float() * THETA ** (-torch.arange(HEAD // 2) / (HEAD // 2))
    c, s = angle.cos(), angle.sin()
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * c - b * s, b * c + a * s], dim=-1).to(x.dtype)


def attend(q, k, v, first=0, window=None, sinks=0):
    """q [HEADS, m, HEAD] of the positions first..; k, v [HEADS, first + m, HEAD] of all; none is
    rotated."""
    n, m = k.shape[1], q.shape[1]
    i, j = torch.arange(first, n), torch.arange(n)
    seen = j <= i[:, None]
    score = rotated(q, i) @ rotated(k, j).mT
    if window is not None:
        seen &= (j < sinks) | (i[:, None] - j < window)
        s = min(sinks, n)
        shift = (i - window + 1 - sinks).clamp(min=0)
        near = rotated(q, i - shift) @ rotated(k[:, :s], j[:s]).mT
        score = torch.cat([near, score[:, :, s:]], dim=2)
    assert seen.shape == (m, n)
    weight = (score / math.sqrt(HEAD)).masked_fill(~seen, -math.inf).softmax(-1)
    return weight @ v


BLOCK = 64


def shared(t):
    """Keys or values for each query head."""
    return t.repeat_interleave(HEADS // KV_HEADS, dim=0)


def attend_call(q, k, v, window=None, sinks=0):
    """The same over a whole call, k and v [KV_HEADS, n, HEAD], without the work that a window
    saves: queries in blocks, those of the heads that share keys together, each with the blocks of
    keys that some query of it may see."""
    n = k.shape[1]
    if window is None or window >= n:
        pos = torch.arange(n)
        a = F.scaled_dot_product_attention(
            rotated(q, pos)[None], shared(rotated(k, pos))[None], shared(v)[None], is_causal=True
        )
        return a[0]
    blocks, back, group = -(-n // BLOCK), -(-(window - 1) // BLOCK), HEADS // KV_HEADS
    more = blocks * BLOCK - n
    i = torch.arange(blocks * BLOCK)
    shift = (i - window + 1 - sinks).clamp(min=0)
    qp = F.pad(q * HEAD**-0.5, (0, 0, 0, more))
    far, near = (
        rotated(qp, p).view(KV_HEADS, group, blocks, BLOCK, HEAD).transpose(1, 2).flatten(2, 3)
        for p in (i, i - shift)
    )  # [KV_HEADS, blocks, group * BLOCK, HEAD]

    def spans(t):
        """[KV_HEADS, blocks, (back + 1) * BLOCK, HEAD]. By cat: unfold is slow backwards."""
        t = F.pad(t, (0, 0, back * BLOCK, more)).view(KV_HEADS, back + blocks, BLOCK, HEAD)
        return torch.cat([t[:, b : b + blocks] for b in range(back + 1)], dim=2)

    k = rotated(k, torch.arange(n))
    i = i.view(blocks, BLOCK, 1)
    begin = (torch.arange(blocks).view(-1, 1, 1) - back) * BLOCK
    j = begin + torch.arange((back + 1) * BLOCK)
    seen = (j <= i) & (i - j < window) & (j >= sinks)
    pinned = (torch.arange(sinks) <= i).expand(blocks, BLOCK, sinks)
    seen = torch.cat([pinned, seen], dim=2).repeat(1, group, 1)
    ks, vs = k[:, None, :sinks], v[:, None, :sinks]
    score = torch.cat([near @ ks.mT, far @ spans(k).mT], dim=3)
    never = torch.zeros(seen.shape, dtype=score.dtype).masked_fill_(~seen, -1e30)
    weight = (score + never).softmax(-1).to(v.dtype)
    out = weight[..., :sinks] @ vs + weight[..., sinks:] @ spans(v)
    out = out.view(KV_HEADS, blocks, group, BLOCK, HEAD).transpose(1, 2)
    return out.reshape(HEADS, blocks * BLOCK, HEAD)[:, :n]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, HIDDEN)
        self.k_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD)
        self.v_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD)
        self.o_proj = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def split(self, x):
        q = self.q_proj(x).view(-1, HEADS, HEAD).transpose(0, 1)
        k, v = (p(x).view(-1, KV_HEADS, HEAD).transpose(0, 1) for p in (self.k_proj, self.v_proj))
        return q, k, v

    def join(self, heads):
        return self.o_proj(heads.transpose(0, 1).reshape(-1, HIDDEN))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, FFN, bias=False)
        self.up_proj = nn.Linear(HIDDEN, FFN, bias=False)
        self.down_proj = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp = Attention(), Mlp()
        self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()


class TextModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()

    def forward(self, x, heads):
        """x [n, HIDDEN]; heads(layer's number, q, k, v) gives [HEADS, n, HEAD]"""
        for i, layer in enumerate(self.layers):
            q, k, v = layer.self_attn.split(layer.input_layernorm(x))
            x = x + layer.self_attn.join(heads(i, q, k, v))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x)


class Thinker(nn.Module):
    def __init__(self):
        super().__init__()
        self.audio_tower, self.model = Tower(), TextModel()
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02 if "embed" in name else p[0].numel() ** -0.5)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, ids, audio, rows, calls):
        """ids [n] of all calls, one behind the other; audio: which of them are placeholders; rows
        [frames, 50, HIDDEN] go there; calls: (length, window, sinks) of each. -> [n, HIDDEN]"""
        x = self.model.embed_tokens(ids)
        x = x.masked_scatter(audio[:, None], rows.reshape(-1, HIDDEN).to(x.dtype))
        lengths = [n for n, _, _ in calls]

        def heads(_, q, k, v):
            parts = zip(*(t.split(lengths, dim=1) for t in (q, k, v)), calls)
            return torch.cat([attend_call(*p, c[1], c[2]) for *p, c in parts], dim=1)

        return self.model(x, heads)


class Cache:
    """One call's keys and values, for answering it token by token."""

    def __init__(self, thinker, window=None, sinks=0):
        self.thinker, self.window, self.sinks = thinker, window, sinks
        self.past = [None] * LAYERS

    def feed(self, x):
        """Rows x [m, HIDDEN] -> log-probabilities after the last one."""

        def heads(i, q, k, v):
            if self.past[i]:
                k, v = (torch.cat(p, dim=1) for p in zip(self.past[i], (k, v)))
            self.past[i] = k, v
            first = k.shape[1] - q.shape[1]
            return attend(q, shared(k), shared(v), first, self.window, self.sinks)

        x = self.thinker.model(x, heads)
        return self.thinker.lm_head(x[-1]).log_softmax(-1)
