"""A second, independent Qwen2.5-Omni thinker in float64: front end, audio tower, language model.

Written from the model's description, with explicit masks and no cache. It gives the values that the
library cannot give (a sliding window with attention sinks) and measures the library's own rounding.
"""

import math

import torch
import torch.nn.functional as F

HOP, FFT = 160, 400


def mel_filters(bands=128, rate=16000):
    """Slaney triangles [bands, 201], each with area 2 / width in Hz."""

    def hz(m):
        return torch.where(m < 15, m * 200 / 3, 1000 * torch.exp((m - 15) * math.log(6.4) / 27))

    top = 15 + 27 * math.log(rate / 2 / 1000) / math.log(6.4)
    edge = hz(torch.linspace(0, top, bands + 2, dtype=torch.float64))
    f = torch.arange(FFT // 2 + 1, dtype=torch.float64) * rate / FFT
    low, mid, high = edge[:-2, None], edge[1:-1, None], edge[2:, None]
    tri = torch.minimum((f - low) / (mid - low), (high - f) / (high - mid)).clamp(min=0)
    return tri * 2 / (high - low)


def log_power(pcm, bands=128):
    """log10 of the mel power [bands, T + 2], not yet clamped, with T = ceil(samples / 160).

    The clip is reflected on the left and followed by zeros. The last two frames lie after the clip
    but can still see samples of it: they count for the clip's maximum and are dropped afterwards.
    """
    x = torch.as_tensor(pcm, dtype=torch.float64)
    frames = -(-len(x) // HOP) + 2
    x = F.pad(x, (0, frames * HOP + FFT - len(x)))
    x = torch.cat([x[1 : FFT // 2 + 1].flip(0), x]).unfold(0, FFT, HOP)[:frames]
    power = torch.fft.rfft(x * torch.hann_window(FFT, dtype=torch.float64)).abs() ** 2
    return torch.log10((mel_filters(bands) @ power.T).clamp(min=1e-10))


def log_mel(pcm, bands=128):
    """Whole-clip log-mel [bands, T]."""
    v = log_power(pcm, bands)
    return ((torch.maximum(v, v.max() - 8) + 4) / 4)[:, :-2]


def stream_blocks(pcm, block, bands=128):
    """The same frames in blocks of `block`, each clamped 8 below the maximum heard so far."""
    heard = -math.inf
    for v in log_power(pcm, bands)[:, :-2].split(block, dim=1):
        heard = max(heard, v.max().item())
        yield (v.clamp(min=heard - 8) + 4) / 4


def layer_norm(w, name, x):
    return F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], 1e-5)


def linear(w, name, x):
    return F.linear(x, w[name + ".weight"], w.get(name + ".bias"))


def tower(w, cfg, mel):
    """Audio rows [n, output_dim] of a log-mel [bands, T]; w holds float64 tensors by name."""
    half, heads = cfg["d_model"] // 2, cfg["encoder_attention_heads"]
    scale = torch.exp(-math.log(10000) / (half - 1) * torch.arange(half, dtype=torch.float64))
    out = []
    for x in mel.split(2 * cfg["n_window"], dim=1):
        for i, stride in (1, 1), (2, 2):
            c = f"audio_tower.conv{i}."
            x = F.gelu(F.conv1d(x, w[c + "weight"], w[c + "bias"], stride=stride, padding=1))
        x = x.T
        angle = torch.arange(len(x), dtype=torch.float64)[:, None] * scale
        x = x + torch.cat([angle.sin(), angle.cos()], dim=1)
        for i in range(cfg["encoder_layers"]):
            p = f"audio_tower.layers.{i}."
            h = layer_norm(w, p + "self_attn_layer_norm", x)
            q, k, v = (
                linear(w, f"{p}self_attn.{n}_proj", h).view(len(x), heads, -1).transpose(0, 1)
                for n in "qkv"
            )
            a = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
            x = x + linear(w, p + "self_attn.out_proj", a.transpose(0, 1).reshape(x.shape))
            h = layer_norm(w, p + "final_layer_norm", x)
            x = x + linear(w, p + "fc2", F.gelu(linear(w, p + "fc1", h)))
        out.append(x)
    x = torch.cat(out)
    x = x[: len(x) // 2 * 2].view(-1, 2, x.shape[1]).mean(1)
    return linear(w, "audio_tower.proj", layer_norm(w, "audio_tower.ln_post", x))


def embed(w, cfg, ids, audio_rows=()):
    """Input rows [len(ids), hidden]; audio rows replace the placeholders in order."""
    x = w["model.embed_tokens.weight"][ids].clone()
    if len(audio_rows):
        x[torch.tensor(ids) == cfg["audio_token_index"]] = torch.cat(list(audio_rows))
    return x


def rotate(x, pos, theta):
    """Rotate halves of x [..., n, hd] by positions [n]."""
    half = x.shape[-1] // 2
    inv = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    c, s = (pos[:, None] * inv).cos(), (pos[:, None] * inv).sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * c - b * s, b * c + a * s], dim=-1)


def rms_norm(w, name, x, eps):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * w[name + ".weight"]


def language_model(w, cfg, x, window=None, sinks=0, rope="absolute"):
    """Log-probabilities [n, vocab] for input rows x [n, hidden].

    Query i sees key j when j <= i and (j < sinks or i - j < window). Keys are rotated at their own
    position j; under rope "cache" a sink key is rotated at j + max(0, i - window + 1 - sinks), so
    that for a late query the sinks sit directly before the window.
    """
    n, eps = len(x), cfg["rms_norm_eps"]
    heads, groups = cfg["num_attention_heads"], cfg["num_key_value_heads"]
    theta = cfg["rope_theta"]
    pos = torch.arange(n)
    i, j = pos[:, None], pos[None, :]
    window = n if window is None else window
    seen = (j <= i) & ((j < sinks) | (i - j < window))
    shift = (pos - window + 1 - sinks).clamp(min=0)
    for layer in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        h = rms_norm(w, p + "input_layernorm", x, eps)
        q, k, v = (
            linear(w, f"{p}self_attn.{c}_proj", h).view(n, m, -1).transpose(0, 1)
            for c, m in (("q", heads), ("k", groups), ("v", groups))
        )
        k, v = (t.repeat_interleave(heads // groups, dim=0) for t in (k, v))
        q = rotate(q, pos, theta)
        score = q @ rotate(k, pos, theta).mT
        if rope == "cache":
            for s in range(min(sinks, n)):
                key = rotate(k[:, s : s + 1].expand(-1, n, -1), s + shift, theta)
                score[:, :, s] = (q * key).sum(-1)
        score = (score / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)
        a = (score.softmax(-1) @ v).transpose(0, 1).reshape(n, -1)
        x = x + linear(w, p + "self_attn.o_proj", a)
        h = rms_norm(w, p + "post_attention_layernorm", x, eps)
        gate = F.silu(linear(w, p + "mlp.gate_proj", h))
        x = x + linear(w, p + "mlp.down_proj", gate * linear(w, p + "mlp.up_proj", h))
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return F.linear(rms_norm(w, "model.norm", x, eps), head).log_softmax(-1)
