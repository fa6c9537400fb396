"""Make the tiny random checkpoints omni-a and omni-b and what a correct engine computes with them.

    python make_golden.py            (needs requirements.txt; less than a minute on one core)

Everything is seeded. What comes from Hugging Face transformers and what from reference.py is said
in README.md; wherever both can compute a value, they are compared here and must agree.
"""

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import (
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    WhisperFeatureExtractor,
)

import reference
from common import (
    HERE,
    JFK,
    NIGHT,
    RATE,
    TEXTS,
    Book,
    clip,
    make_tokenizer,
    near,
    samples_of,
    write_json,
    write_lines,
    write_weights,
)

# The shapes. dtype, shards and style decide how the checkpoint is written, not what it computes.
SPECS = {
    "omni-a": dict(
        seed=1, vocab=400, hidden=48, layers=3, heads=3, kv_heads=1, ffn=80, theta=1e6,
        mrope=[2, 3, 3], d_model=40, audio_heads=2, audio_layers=2, audio_ffn=72,
        dtype=torch.float32, shards=1, style=4, tokenizer="tokenizer.json", mel=True,
    ),
    "omni-b": dict(
        seed=2, vocab=424, hidden=64, layers=2, heads=4, kv_heads=2, ffn=104, theta=5e4,
        mrope=[2, 3, 3], d_model=32, audio_heads=4, audio_layers=3, audio_ffn=88,
        dtype=torch.bfloat16, shards=3, style=5, tokenizer="vocab.json", decoys=True,
    ),
}  # fmt: skip

SPECIALS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>",
    "<|vision_bos|>", "<|vision_eos|>", "<|IMAGE|>", "<|VIDEO|>", "<|listen|>",
]  # fmt: skip

# ---------------------------------------------------------------------------------------------
# Checkpoint


def make_config(spec, tok):
    """The thinker's configuration for the library, with the rope keys of transformers 4."""
    ids = {s: tok.token_to_id(s) for s in SPECIALS}
    text = dict(
        vocab_size=spec["vocab"], hidden_size=spec["hidden"], intermediate_size=spec["ffn"],
        num_hidden_layers=spec["layers"], num_attention_heads=spec["heads"],
        num_key_value_heads=spec["kv_heads"], max_position_embeddings=32768,
        rms_norm_eps=spec.get("eps", 1e-6), rope_theta=spec["theta"],
        rope_scaling=dict(mrope_section=spec["mrope"], rope_type="default", type="default"),
        tie_word_embeddings=spec.get("tied", False),
    )  # fmt: skip
    if "head_dim" in spec:
        text["head_dim"] = spec["head_dim"]
    return Qwen2_5OmniThinkerConfig(
        audio_config=dict(
            num_mel_bins=128, d_model=spec["d_model"], encoder_layers=spec["audio_layers"],
            encoder_attention_heads=spec["audio_heads"], encoder_ffn_dim=spec["audio_ffn"],
            output_dim=spec["hidden"], n_window=100, max_source_positions=1500,
        ),
        vision_config=dict(
            depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=2,
            out_hidden_size=spec["hidden"], fullatt_block_indexes=[0],
        ),
        text_config=text,
        audio_token_index=ids["<|AUDIO|>"], image_token_index=ids["<|IMAGE|>"],
        video_token_index=ids["<|VIDEO|>"], vision_start_token_id=ids["<|vision_bos|>"],
        vision_end_token_id=ids["<|vision_eos|>"], audio_start_token_id=ids["<|audio_bos|>"],
        audio_end_token_id=ids["<|audio_eos|>"], pad_token_id=ids["<|endoftext|>"],
        user_token_id=tok.encode("user").ids[0], tie_word_embeddings=spec.get("tied", False),
    )  # fmt: skip


def write_config(spec, config, folder):
    thinker = config.to_diff_dict()
    thinker["architectures"] = ["Qwen2_5OmniThinkerForConditionalGeneration"]
    thinker.pop("transformers_version", None)
    name = str(spec["dtype"]).removeprefix("torch.")
    text = thinker["text_config"]
    text["rope_theta"] = spec["theta"]  # the diff leaves out what equals the default
    text["rms_norm_eps"] = spec.get("eps", 1e-6)
    thinker["tie_word_embeddings"] = text["tie_word_embeddings"] = spec.get("tied", False)
    if spec["style"] == 5:
        thinker["audio_config"]["tie_word_embeddings"] = True  # saved so; it isn't the head's
        scaling = text.pop("rope_scaling")
        text["rope_parameters"] = dict(
            mrope_section=scaling["mrope_section"], rope_theta=text.pop("rope_theta"),
            rope_type="default",
        )  # fmt: skip
    top = dict(architectures=["Qwen2_5OmniModel"], enable_audio_output=bool(spec.get("decoys")),
               model_type="qwen2_5_omni", thinker_config=thinker)  # fmt: skip
    if spec.get("decoys"):
        top["talker_config"] = dict(
            model_type="qwen2_5_omni_talker", hidden_size=24, vocab_size=40, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, head_dim=8, rope_theta=1e4,
            audio_token_index=7, tie_word_embeddings=True,
        )  # fmt: skip
    top["dtype" if spec["style"] == 5 else "torch_dtype"] = name
    write_json(folder / "config.json", top)


def make_weights(spec, config):
    """Random weights by name, wide enough that attention and the output are far from flat."""
    rng = np.random.default_rng(spec["seed"])
    with torch.device("meta"):
        shapes = Qwen2_5OmniThinkerForConditionalGeneration(config).state_dict()
    out = {}
    for name in sorted(shapes):
        shape = tuple(shapes[name].shape)
        if name.startswith("visual.") or (spec.get("tied") and name == "lm_head.weight"):
            continue
        if name.endswith("bias"):
            v = rng.normal(0, 0.3, shape)
        elif len(shape) == 1:
            v = rng.uniform(0.5, 1.5, shape)
        elif "embed_tokens" in name or "bos_eos" in name:
            v = rng.normal(0, 0.3, shape)
        else:
            gain = 1.4 if "q_proj" in name or "k_proj" in name else 1.0
            gain = 2.5 if "lm_head" in name else gain
            v = rng.normal(0, gain / np.prod(shape[1:]) ** 0.5, shape)
        out["thinker." + name] = torch.tensor(v, dtype=torch.float32).to(spec["dtype"])
    return out


DECOYS = {
    "thinker.visual.patch_embed.proj.weight": (16, 3, 2, 2, 2),
    "thinker.visual.blocks.0.attn.q.weight": (16, 16),
    "thinker.visual.merger.ln_q.weight": (16,),
    "talker.model.embed_tokens.weight": (40, 24),
    "talker.model.layers.0.self_attn.q_proj.weight": (16, 24),
    "talker.model.norm.weight": (24,),
    "talker.codec_head.weight": (40, 24),
    "token2wav.code2wav_dit_model.proj_out.weight": (10, 12),
    "token2wav.code2wav_bigvgan_model.conv_pre.bias": (6,),
}


class Checkpoint:
    """What was written, read back: the library's model in float32 and our weights in float64."""

    def __init__(self, folder, config):
        state = {}
        for file in sorted(folder.glob("model*.safetensors")):
            state.update(load_file(file))
        drop = ("talker.", "token2wav.", "thinker.visual.")
        state = {n.removeprefix("thinker."): t for n, t in state.items() if not n.startswith(drop)}
        self.model = Qwen2_5OmniThinkerForConditionalGeneration(config).eval()
        missing, extra = self.model.load_state_dict({n: t.float() for n, t in state.items()}, False)
        tied = {"lm_head.weight"} if config.text_config.tie_word_embeddings else set()
        assert not extra and {n for n in missing if not n.startswith("visual.")} <= tied
        self.w = {n: t.double() for n, t in state.items()}
        text = config.text_config
        self.text = dict(text.to_dict(), audio_token_index=config.audio_token_index)
        self.audio = config.audio_config.to_dict()
        # As Qwen2.5-Omni's processor makes and calls it.
        self.extractor = WhisperFeatureExtractor(
            feature_size=128, chunk_length=300, hop_length=160, n_fft=400, sampling_rate=RATE,
            padding_value=0.0, return_attention_mask=True,
        )  # fmt: skip

    def features(self, clips):
        return self.extractor(
            clips, sampling_rate=RATE, padding="max_length", return_attention_mask=True,
            return_tensors="pt",
        )  # fmt: skip

    def log_probs(self, ids, clips):
        kw = {}
        if clips:
            f = self.features(clips)
            kw = dict(
                input_features=f["input_features"], feature_attention_mask=f["attention_mask"]
            )
        ids = torch.tensor([ids])
        out = self.model(input_ids=ids, attention_mask=torch.ones_like(ids), **kw)
        return out.logits[0].float().log_softmax(-1)

    def rows(self, clip):
        f = self.features([clip])
        return self.model.get_audio_features(
            f["input_features"], feature_attention_mask=f["attention_mask"]
        )

    def block_rows(self, mel):
        """The library's tower on one block as an item of its own; a block can be too short."""
        n = torch.tensor([mel.shape[1]])
        after = (n - 1) // 2 + 1
        if after < 2:
            return torch.zeros(0, self.audio["output_dim"])
        return self.model.audio_tower(mel.float(), n, after).last_hidden_state

    def own_log_probs(self, ids, clips, **kv):
        rows = [reference.tower(self.w, self.audio, reference.log_mel(c)) for c in clips]
        x = reference.embed(self.w, self.text, ids, rows)
        return reference.language_model(self.w, self.text, x, **kv)


# ---------------------------------------------------------------------------------------------
# Cases


def audio_rows(samples):
    frames = -(-samples // 160)
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1


def ordinary(tok):
    """How many ids come before those of added tokens."""
    return tok.get_vocab_size(with_added_tokens=False)


def turn(tok, *parts):
    """One user turn in the released form; a dict among the parts is a clip."""
    text = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
    for p in parts:
        if isinstance(p, dict):
            p = "<|audio_bos|>" + "<|AUDIO|>" * audio_rows(p["samples"]) + "<|audio_eos|>"
        text += p
    return tok.encode(text + "<|im_end|>\n<|im_start|>assistant\n").ids


def logit_cases(book, ck, tok, spec):
    rng = np.random.default_rng(100 + spec["seed"])
    words = ordinary(tok)
    odd = clip(NIGHT, 80000, 20321)
    cases = [
        ("text-short", turn(tok, "Ask what you can do."), []),
        ("text-300", rng.integers(0, words, 300).tolist(), []),
        ("audio-2.5s", *with_audio(tok, clip(JFK, 0, 40000), "What was said?")),
        ("audio-two", *with_audio(tok, clip(JFK, 16000, 59200), " and then ", odd, "Compare.")),
        ("audio-30s", *with_audio(tok, clip(NIGHT, 0, 480000), "")),
    ]
    for name, ids, clips in cases:
        n = len(ids)
        pcm = [samples_of(c) for c in clips]
        at = [0, 1, 2, 7, 31, 63, 64, 65, 127, 128, 255, 256, n - 2, n - 1]
        special = [i for i, t in enumerate(ids) if t == ck.text["audio_token_index"]]
        if special:
            ends = [i for i in special if i - 1 not in special or i + 1 not in special]
            at = [1, n - 2, n - 1, 70, 400] + [i + d for i in ends for d in (-1, 0, 1)]
        at = near(at, n)
        got, own = ck.log_probs(ids, pcm)[at], ck.own_log_probs(ids, pcm)[at]
        error = (got - own).abs().max().item()
        assert error < (1e-3 if clips else 1e-4), (name, error)
        book.add(name, got, kind="logits", ids=ids, audio=clips, at=at, kv=None,
                 f32_error=float(f"{error:.2g}"))  # fmt: skip


def with_audio(tok, *parts):
    return turn(tok, *parts), [p for p in parts if isinstance(p, dict)]


def window_cases(book, ck, tok, spec):
    rng = np.random.default_rng(200 + spec["seed"])
    words = ordinary(tok)
    todo = []
    for w, s in (8, 0), (8, 1), (16, 4), (33, 5), (64, 4):
        n = 3 * w + 10
        at = near([w + d for d in range(-2, 3)] + [w + s + d for d in (-1, 0, 1)]
                  + [3 * w + 6, 3 * w + 7, 3 * w + 8, n - 1], n)  # fmt: skip
        todo.append((f"W{w}-S{s}", w, s, rng.integers(0, words, n).tolist(), [], at))
    ids, clips = with_audio(tok, clip(JFK, 0, 40000), "What was said?")
    at = near([31, 32, 33, 34, 37, 38, 39, 60, 80, 106, 107, len(ids) - 1], len(ids))
    todo.append(("audio-W33-S5", 33, 5, ids, clips, at))
    for name, w, s, ids, clips, at in todo:
        pcm = [samples_of(c) for c in clips]
        whole = ck.own_log_probs(ids, pcm)
        assert (whole - ck.log_probs(ids, pcm)).abs().max() < (1e-3 if clips else 1e-4), name
        wide = ck.own_log_probs(ids, pcm, window=len(ids), sinks=s, rope="cache")
        assert torch.allclose(whole, wide, atol=1e-9), name
        for rope in "cache", "absolute":
            got = ck.own_log_probs(ids, pcm, window=w, sinks=s, rope=rope)
            assert torch.allclose(got[:w], whole[:w], atol=1e-9), name
            book.add(f"{name}-{rope}", got[at], kind="window", ids=ids, audio=clips, at=at,
                     kv=dict(window=w, sinks=s, rope=rope))  # fmt: skip


# The loudest frame of this one lies after its end, in the padding that is dropped: log_power().
LOUD_END = clip(JFK, 8730, 2400)
MEL_CLIPS = [
    ("mel-0.15s-loud-end", LOUD_END, 1),
    ("mel-2.013s-odd", clip(JFK, 5000, 32209), 1),
    ("mel-11s", clip(JFK, 0, 176000), 8),
]


def mel_cases(book, ck):
    for name, c, step in MEL_CLIPS:
        pcm = samples_of(c)
        f = ck.features([pcm])
        frames = int(f["attention_mask"].sum())
        mel = f["input_features"][0, :, :frames]
        error = (mel - reference.log_mel(pcm)).abs().max().item()
        assert frames == -(-len(pcm) // 160) and error < 1e-4, (name, error)
        book.add(name, mel[:, ::step], key="mel_tensor", kind="mel", audio=[c], frames=frames,
                 frame_step=step, f32_error=float(f"{error:.2g}"))  # fmt: skip


def embed_cases(book, ck):
    clips = [
        ("0.04s", clip(JFK, 16000, 640), 1),
        ("0.15s-loud-end", LOUD_END, 1),
        ("0.5s", clip(JFK, 8000, 8000), 1),
        ("2s", clip(JFK, 16000, 32000), 1),
        ("2.013s-odd", clip(JFK, 5000, 32209), 1),
        ("3.7s", clip(NIGHT, 16000, 59200), 1),
        ("5.3s-odd", clip(NIGHT, 100000, 84877), 1),
        ("6s-quiet-start-odd", clip(JFK, 38400, 96163), 1),
        ("11s", clip(JFK, 0, 176000), 3),
        ("30s", clip(NIGHT, 0, 480000), 7),
    ]
    for name, c, step in clips:
        pcm = samples_of(c)
        whole, own = ck.rows(pcm), reference.tower(ck.w, ck.audio, reference.log_mel(pcm))
        error = (whole - own).abs().max().item()
        assert whole.shape == own.shape and error < 1e-3, (name, error)
        fields = dict(audio=[c], rows=len(whole), row_step=step)
        book.add(f"embed-{name}", whole[::step], kind="embed", **fields,
                 f32_error=float(f"{error:.2g}"))  # fmt: skip
        blocks = reference.stream_blocks(pcm, 2 * ck.audio["n_window"])
        rows = torch.cat([ck.block_rows(b) for b in blocks])
        assert rows.shape == whole.shape, name
        rms = ((rows - whole).square().mean() / whole.square().mean()).sqrt().item()
        book.add(f"stream-{name}", rows[::step], kind="stream", **fields,
                 rms_to_whole=float(f"{rms:.3g}"))  # fmt: skip


def make(name, spec, root):
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    tok = make_tokenizer(spec, folder, SPECIALS)
    write_lines(folder / "tokens.json", [dict(text=t, ids=tok.encode(t).ids) for t in TEXTS])
    config = make_config(spec, tok)
    write_config(spec, config, folder)
    decoys = DECOYS if spec.get("decoys") else None
    write_weights(spec, make_weights(spec, config), folder, decoys)
    ck, book = Checkpoint(folder, config), Book()
    logit_cases(book, ck, tok, spec)
    if spec.get("mel"):
        mel_cases(book, ck)
    embed_cases(book, ck)
    window_cases(book, ck, tok, spec)
    book.write(folder)
    for case in book.cases:
        print(name, case["name"], case.get("f32_error", ""), case.get("rms_to_whole", ""))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.no_grad():
        for name, spec in SPECS.items():
            make(name, spec, HERE)
