"""A second, independent Qwen Omni thinker in float64: front end, audio towers, language model.

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


def log_mel_reflected(pcm, bands=128):
    """Log-mel [bands, floor(samples / 160)] of a clip with its own reflection behind it."""
    x = torch.as_tensor(pcm, dtype=torch.float64)
    half = FFT // 2
    x = torch.cat([x[1 : half + 1].flip(0), x, x[-half - 1 : -1].flip(0)]).unfold(0, FFT, HOP)[:-1]
    power = torch.fft.rfft(x * torch.hann_window(FFT, dtype=torch.float64)).abs() ** 2
    v = torch.log10((mel_filters(bands) @ power.T).clamp(min=1e-10))
    return (torch.maximum(v, v.max() - 8) + 4) / 4


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


def sinusoid(rows, d):
    half = d // 2
    scale = torch.exp(-math.log(10000) / (half - 1) * torch.arange(half, dtype=torch.float64))
    angle = torch.arange(rows, dtype=torch.float64)[:, None] * scale
    return torch.cat([angle.sin(), angle.cos()], dim=1)


def encoder_layers(w, cfg, x, past=None):
    """Rows x through all layers; they see each other and, where given, a layer's past keys and
    values in past[layer], a list of (k, v) to which theirs are added."""
    heads = cfg["encoder_attention_heads"]
    for i in range(cfg["encoder_layers"]):
        p = f"audio_tower.layers.{i}."
        h = layer_norm(w, p + "self_attn_layer_norm", x)
        q, k, v = (
            linear(w, f"{p}self_attn.{n}_proj", h).view(len(x), heads, -1).transpose(0, 1)
            for n in "qkv"
        )
        if past is not None:
            past[i].append((k, v))
            k, v = (torch.cat(part, dim=1) for part in zip(*past[i]))
        a = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
        x = x + linear(w, p + "self_attn.out_proj", a.transpose(0, 1).reshape(x.shape))
        h = layer_norm(w, p + "final_layer_norm", x)
        x = x + linear(w, p + "fc2", F.gelu(linear(w, p + "fc1", h)))
    return x


def tower(w, cfg, mel):
    """Audio rows [n, output_dim] of a log-mel [bands, T]; w holds float64 tensors by name."""
    out = []
    for x in mel.split(2 * cfg["n_window"], dim=1):
        for i, stride in (1, 1), (2, 2):
            c = f"audio_tower.conv{i}."
            x = F.gelu(F.conv1d(x, w[c + "weight"], w[c + "bias"], stride=stride, padding=1))
        out.append(encoder_layers(w, cfg, x.T + sinusoid(x.shape[1], cfg["d_model"])))
    x = torch.cat(out)
    x = x[: len(x) // 2 * 2].view(-1, 2, x.shape[1]).mean(1)
    return linear(w, "audio_tower.proj", layer_norm(w, "audio_tower.ln_post", x))


def aut_rows(frames):
    for _ in range(3):
        frames = (frames + 1) // 2
    return frames


def aut_stem(w, cfg, mel, whole):
    """Qwen3-Omni: a chunk of mel [bands, up to 2 n_window] to rows [n, d_model]. Where whole chunks
    stand before it, a short one is padded with zeros to their length."""
    rows, chunk = aut_rows(mel.shape[1]), 2 * cfg["n_window"]
    x = F.pad(mel, (0, chunk - mel.shape[1])) if whole else mel
    x = x[None, None]
    for i in 1, 2, 3:
        c = f"audio_tower.conv2d{i}."
        x = F.gelu(F.conv2d(x, w[c + "weight"], w[c + "bias"], stride=2, padding=1))
    x = linear(w, "audio_tower.conv_out", x[0].permute(2, 0, 1).flatten(1))
    return (x + sinusoid(len(x), cfg["d_model"]))[:rows]


def aut_end(w, x):
    x = F.gelu(linear(w, "audio_tower.proj1", layer_norm(w, "audio_tower.ln_post", x)))
    return linear(w, "audio_tower.proj2", x)


def aut(w, cfg, mel):
    """Qwen3-Omni's audio rows [n, output_dim] of a whole clip's log-mel [bands, T]."""
    chunk = 2 * cfg["n_window"]
    stem = [aut_stem(w, cfg, x, mel.shape[1] >= chunk) for x in mel.split(chunk, dim=1)]
    window = aut_rows(chunk) * (cfg["n_window_infer"] // chunk)
    windows = torch.cat(stem).split(window)
    return aut_end(w, torch.cat([encoder_layers(w, cfg, x) for x in windows]))


def aut_stream(w, cfg, chunks):
    """The same heard chunk by chunk: each sees itself and what its window has had before. A chunk
    that the window has no rows left for begins the next one."""
    chunk, out, whole = 2 * cfg["n_window"], [], False
    window = aut_rows(chunk) * (cfg["n_window_infer"] // chunk)
    used = window
    for mel in chunks:
        x = aut_stem(w, cfg, mel, whole)
        whole = whole or mel.shape[1] == chunk
        if used + len(x) > window:
            used, past = 0, [[] for _ in range(cfg["encoder_layers"])]
        used += len(x)
        out.append(encoder_layers(w, cfg, x, past))
    return aut_end(w, torch.cat(out))


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


def mlp(w, cfg, p, h):
    """Gated MLP, or a mixture of experts where the layer has a router."""

    def gated(p, h):
        gate = F.silu(linear(w, p + "gate_proj", h))
        return linear(w, p + "down_proj", gate * linear(w, p + "up_proj", h))

    if p + "gate.weight" not in w:
        return gated(p, h)
    share, chosen = linear(w, p + "gate", h).softmax(-1).topk(cfg["num_experts_per_tok"])
    if cfg["norm_topk_prob"]:
        share = share / share.sum(-1, keepdim=True)
    out = torch.zeros_like(h)
    for e in range(cfg["num_experts"]):
        row, rank = torch.where(chosen == e)
        out[row] += share[row, rank, None] * gated(f"{p}experts.{e}.", h[row])
    return out


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
        if p + "self_attn.q_norm.weight" in w:
            q = rms_norm(w, p + "self_attn.q_norm", q, eps)
            k = rms_norm(w, p + "self_attn.k_norm", k, eps)
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
        x = x + mlp(w, cfg, p + "mlp.", h)
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return F.linear(rms_norm(w, "model.norm", x, eps), head).log_softmax(-1)
