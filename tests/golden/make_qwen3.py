"""Make the tiny random checkpoints qwen3-a and qwen3-b and what a correct engine makes of them.

    python make_qwen3.py             (needs requirements-5.txt; less than a minute on one core)

As make_golden.py, for Qwen3-Omni. Only transformers 5 keeps the audio tower's windows of 8 s
without flash attention, so that it is the one that is asked.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3OmniMoeThinkerForConditionalGeneration, WhisperFeatureExtractor

import reference
from common import (
    HERE,
    JFK,
    NIGHT,
    RATE,
    Book,
    clip,
    make_tokenizer,
    near,
    samples_of,
    write_json,
    write_weights,
)

# The shapes. dtype, shards, style and whole decide how the checkpoint is written.
SPECS = {
    "qwen3-a": dict(
        seed=11, vocab=400, hidden=48, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=40,
        experts=8, top=3, moe_ffn=20, norm=True, plain=[], theta=1e6, mrope=[4, 2, 2],
        d_model=32, audio_heads=4, audio_layers=2, audio_ffn=48, channels=6,
        dtype=torch.bfloat16, shards=3, style=4, tokenizer="tokenizer.json", whole=True,
    ),
    "qwen3-b": dict(
        seed=12, vocab=408, hidden=38, layers=3, heads=3, kv_heads=1, head_dim=22, ffn=27,
        experts=7, top=2, moe_ffn=13, norm=False, plain=[1], theta=5e4, mrope=[5, 3, 3],
        d_model=30, audio_heads=2, audio_layers=1, audio_ffn=37, channels=5,
        dtype=torch.float32, shards=1, style=5, tokenizer="vocab.json", whole=False,
    ),
}  # fmt: skip

SPECIALS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_end|>",
    "<|audio_pad|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
    "<tts_pad>",
]  # fmt: skip

# ---------------------------------------------------------------------------------------------
# Checkpoint


def make_config(spec, tok):
    """The thinker's config.json, in the words of transformers 4 or 5."""
    ids = {s: tok.token_to_id(s) for s in SPECIALS}
    text = dict(
        model_type="qwen3_omni_moe_text", vocab_size=spec["vocab"], hidden_size=spec["hidden"],
        intermediate_size=spec["ffn"], num_hidden_layers=spec["layers"],
        num_attention_heads=spec["heads"], num_key_value_heads=spec["kv_heads"],
        head_dim=spec["head_dim"], max_position_embeddings=65536, rms_norm_eps=1e-6,
        hidden_act="silu", attention_bias=False, attention_dropout=0.0, use_cache=True,
        sliding_window=None, decoder_sparse_step=1, mlp_only_layers=spec["plain"],
        num_experts=spec["experts"], num_experts_per_tok=spec["top"],
        moe_intermediate_size=spec["moe_ffn"], norm_topk_prob=spec["norm"],
        output_router_logits=False, router_aux_loss_coef=0.001, initializer_range=0.02,
    )  # fmt: skip
    rope = dict(mrope_interleaved=True, mrope_section=spec["mrope"], rope_type="default")
    if spec["style"] == 5:
        text["rope_parameters"] = dict(rope, rope_theta=spec["theta"])
    else:
        text |= dict(rope_scaling=rope | dict(interleaved=True), rope_theta=spec["theta"])
    audio = dict(
        model_type="qwen3_omni_moe_audio_encoder", num_mel_bins=128, d_model=spec["d_model"],
        encoder_layers=spec["audio_layers"], encoder_attention_heads=spec["audio_heads"],
        encoder_ffn_dim=spec["audio_ffn"], output_dim=spec["hidden"], n_window=50,
        n_window_infer=800, conv_chunksize=500, downsample_hidden_size=spec["channels"],
        max_source_positions=1500, activation_function="gelu", scale_embedding=False,
    )  # fmt: skip
    vision = dict(
        model_type="qwen3_omni_moe_vision_encoder", depth=1, hidden_size=16, intermediate_size=16,
        num_heads=2, patch_size=2, out_hidden_size=spec["hidden"], num_position_embeddings=16,
        deepstack_visual_indexes=[0],
    )  # fmt: skip
    return dict(
        architectures=["Qwen3OmniMoeThinkerForConditionalGeneration"],
        model_type="qwen3_omni_moe_thinker", text_config=text, audio_config=audio,
        vision_config=vision, audio_token_id=ids["<|audio_pad|>"],
        audio_start_token_id=ids["<|audio_start|>"], audio_end_token_id=ids["<|audio_end|>"],
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
        position_id_per_seconds=13, user_token_id=tok.encode("user").ids[0],
    )  # fmt: skip


def write_config(spec, thinker, folder):
    kind = {"dtype": str(spec["dtype"]).removeprefix("torch.")}
    if not spec["whole"]:
        return write_json(folder / "config.json", thinker | kind)
    talker = dict(
        model_type="qwen3_omni_moe_talker", thinker_hidden_size=spec["hidden"],
        text_config=dict(hidden_size=24, num_hidden_layers=1, num_experts=4, vocab_size=40),
    )  # fmt: skip
    write_json(folder / "config.json", dict(
        architectures=["Qwen3OmniMoeForConditionalGeneration"], model_type="qwen3_omni_moe",
        enable_audio_output=True, thinker_config=thinker, talker_config=talker,
        code2wav_config=dict(model_type="qwen3_omni_moe_code2wav", hidden_size=12),
    ) | kind)  # fmt: skip


def shapes(spec):
    """Every tensor of a thinker without its vision tower, as released: an expert has three."""
    h, q, kv = spec["hidden"], spec["heads"] * spec["head_dim"], spec["kv_heads"] * spec["head_dim"]
    d, c, f = spec["d_model"], spec["channels"], spec["audio_ffn"]
    out = {"model.embed_tokens.weight": (spec["vocab"], h), "lm_head.weight": (spec["vocab"], h)}
    out["model.norm.weight"] = (h,)

    def gated(p, n):
        return {p + "gate_proj": (n, h), p + "up_proj": (n, h), p + "down_proj": (h, n)}

    for i in range(spec["layers"]):
        p = f"model.layers.{i}."
        part = {
            "self_attn.q_proj": (q, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h),
            "self_attn.o_proj": (h, q), "self_attn.q_norm": (spec["head_dim"],),
            "self_attn.k_norm": (spec["head_dim"],), "input_layernorm": (h,),
            "post_attention_layernorm": (h,),
        }  # fmt: skip
        if i in spec["plain"]:
            part |= gated("mlp.", spec["ffn"])
        else:
            part["mlp.gate"] = (spec["experts"], h)
            for e in range(spec["experts"]):
                part |= gated(f"mlp.experts.{e}.", spec["moe_ffn"])
        out |= {f"{p}{n}.weight": s for n, s in part.items()}
    part = {"conv2d1": (c, 1, 3, 3), "conv2d2": (c, c, 3, 3), "conv2d3": (c, c, 3, 3)}
    part |= {"ln_post": (d,), "proj1": (d, d), "proj2": (h, d)}
    for i in range(spec["audio_layers"]):
        p = f"layers.{i}."
        part |= {f"{p}self_attn.{n}": (d, d) for n in ("q_proj", "k_proj", "v_proj", "out_proj")}
        part |= {p + "self_attn_layer_norm": (d,), p + "final_layer_norm": (d,)}
        part |= {p + "fc1": (f, d), p + "fc2": (d, f)}
    for n, s in part.items():
        out |= {f"audio_tower.{n}.weight": s, f"audio_tower.{n}.bias": s[:1]}
    out["audio_tower.conv_out.weight"] = (d, 16 * c)
    return out


def make_weights(spec):
    """Random weights by name, so wide that attention, routing and output are far from flat."""
    rng = np.random.default_rng(spec["seed"])
    out = {}
    for name, shape in sorted(shapes(spec).items()):
        if name.endswith("bias"):
            v = rng.normal(0, 0.3, shape)
        elif len(shape) == 1:
            v = rng.uniform(0.5, 1.5, shape)
        elif "embed_tokens" in name:
            v = rng.normal(0, 0.3, shape)
        else:
            gain = 1.4 if "q_proj" in name or "k_proj" in name or "conv2d" in name else 1.0
            gain = 2.5 if "lm_head" in name else gain
            v = rng.normal(0, gain / np.prod(shape[1:]) ** 0.5, shape)
        name = "thinker." + name if spec["whole"] else name
        out[name] = torch.tensor(v, dtype=torch.float32).to(spec["dtype"])
    return out


DECOYS = {
    "thinker.visual.patch_embed.proj.weight": (16, 3, 2, 2, 2),
    "thinker.visual.blocks.0.attn.qkv.weight": (48, 16),
    "thinker.visual.merger_list.0.ln_q.weight": (16,),
    "talker.model.codec_embedding.weight": (40, 24),
    "talker.model.layers.0.mlp.experts.0.gate_proj.weight": (8, 24),
    "talker.model.layers.0.mlp.shared_expert_gate.weight": (1, 24),
    "talker.code_predictor.lm_head.0.weight": (20, 24),
    "code2wav.code_embedding.weight": (32, 12),
    "code2wav.decoder.0.conv.bias": (6,),
}


class Checkpoint:
    """What was written, read back: the library's model in float32 and our weights in float64."""

    def __init__(self, folder, config):
        state = {}
        for file in sorted(folder.glob("model*.safetensors")):
            state.update(load_file(file))
        drop = ("talker.", "code2wav.", "thinker.visual.")
        state = {n.removeprefix("thinker."): t for n, t in state.items() if not n.startswith(drop)}
        with tempfile.TemporaryDirectory() as alone:  # the library reads a thinker by itself
            save_file(state, Path(alone) / "model.safetensors", metadata={"format": "pt"})
            write_json(Path(alone) / "config.json", config)
            self.model, info = Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(
                alone, dtype=torch.float32, output_loading_info=True,
                experts_implementation="eager",  # the fast ones want rows of 16 bytes
            )
        assert not info["unexpected_keys"], info
        assert all("visual." in n for n in info["missing_keys"]), info
        self.model.eval()
        self.w = {n: t.double() for n, t in state.items()}
        self.text = dict(config["text_config"], audio_token_index=config["audio_token_id"])
        self.text |= self.text.get("rope_parameters", {})
        self.audio = config["audio_config"]
        self.extractor = WhisperFeatureExtractor(feature_size=128, sampling_rate=RATE)

    def features(self, samples):
        """As Qwen3-Omni's processor calls the extractor, one clip at a time."""
        return self.extractor(
            [samples], sampling_rate=RATE, padding=True, truncation=False,
            return_attention_mask=True, return_tensors="pt",
        )  # fmt: skip

    def rows(self, samples):
        f = self.features(samples)
        return self.model.get_audio_features(
            f["input_features"], feature_attention_mask=f["attention_mask"]
        ).last_hidden_state

    def log_probs(self, ids, clips):
        at, kw = torch.tensor([ids]), {}
        if len(clips) == 1:
            f = self.features(clips[0])
            kw = dict(
                input_features=f["input_features"], feature_attention_mask=f["attention_mask"]
            )
        elif clips:  # a call pads the shorter one: each by itself, then together
            x = self.model.get_input_embeddings()(at)
            rows = torch.cat([self.rows(c) for c in clips])
            x[at == self.text["audio_token_index"]] = rows
            out = self.model(inputs_embeds=x, attention_mask=torch.ones_like(at))
            return out.logits[0].log_softmax(-1)
        out = self.model(input_ids=at, attention_mask=torch.ones_like(at), **kw)
        return out.logits[0].log_softmax(-1)

    def own_rows(self, samples):
        return reference.aut(self.w, self.audio, reference.log_mel_reflected(samples))

    def own_log_probs(self, ids, clips, **kv):
        x = reference.embed(self.w, self.text, ids, [self.own_rows(c) for c in clips])
        return reference.language_model(self.w, self.text, x, **kv)


# ---------------------------------------------------------------------------------------------
# Cases


def audio_rows(samples):
    frames = samples // 160
    return frames // 100 * 13 + reference.aut_rows(frames % 100)


def turn(tok, *parts):
    """One user turn in the released form, no system text; a dict among the parts is a clip."""
    text = "<|im_start|>user\n"
    for p in parts:
        if isinstance(p, dict):
            p = "<|audio_start|>" + "<|audio_pad|>" * audio_rows(p["samples"]) + "<|audio_end|>"
        text += p
    ids = tok.encode(text + "<|im_end|>\n<|im_start|>assistant\n").ids
    return ids, [p for p in parts if isinstance(p, dict)]


def logit_cases(book, ck, tok, spec):
    rng = np.random.default_rng(100 + spec["seed"])
    words = tok.get_vocab_size(with_added_tokens=False)
    cases = [
        ("text-short", turn(tok, "Ask what you can do.")),
        ("text-300", (rng.integers(0, words, 300).tolist(), [])),
        ("audio-2.5s", turn(tok, clip(JFK, 0, 40000), "What was said?")),
        ("audio-two", turn(tok, clip(JFK, 16000, 59200), " and ", clip(NIGHT, 80000, 9321), "?")),
        ("audio-30s", turn(tok, clip(NIGHT, 0, 480000), "")),
    ]
    for name, (ids, clips) in cases:
        n = len(ids)
        pcm = [samples_of(c) for c in clips]
        at = [0, 7, 63, 64, 127, 128, 255, 256, n - 1]
        special = [i for i, t in enumerate(ids) if t == ck.text["audio_token_index"]]
        if special:
            ends = [i for i in special if i - 1 not in special or i + 1 not in special]
            at = [n - 1, 70, 400] + [i + d for i in ends for d in (-1, 0, 1)]
        at = near(at, n)
        got, own = ck.log_probs(ids, pcm)[at], ck.own_log_probs(ids, pcm)[at]
        error = (got - own).abs().max().item()
        assert error < (1e-3 if clips else 1e-4), (name, error)
        # In a long text a coarse cache tips some row over to another expert.
        book.add(name, got, kind="logits", ids=ids, audio=clips, at=at, kv=None, tips=n > 200,
                 f32_error=float(f"{error:.2g}"))  # fmt: skip


def window_cases(book, ck, tok, spec):
    rng = np.random.default_rng(200 + spec["seed"])
    words = tok.get_vocab_size(with_added_tokens=False)
    todo = []
    for w, s in (8, 0), (16, 4), (33, 5):
        n = 3 * w + 10
        at = near([w - 1, w, w + s, w + s + 1, 3 * w + 7, n - 1], n)
        todo.append((f"W{w}-S{s}", w, s, rng.integers(0, words, n).tolist(), [], at))
    ids, clips = turn(tok, clip(JFK, 0, 40000), "What was said?")
    n = len(ids)
    todo.append(("audio-W24-S5", 24, 5, ids, clips, near([23, 24, 25, 29, 30, 40, n - 1], n)))
    for name, w, s, ids, clips, at in todo:
        pcm = [samples_of(c) for c in clips]
        whole = ck.own_log_probs(ids, pcm)
        assert (whole - ck.log_probs(ids, pcm)).abs().max() < (1e-3 if clips else 1e-4), name
        for rope in "cache", "absolute":
            got = ck.own_log_probs(ids, pcm, window=w, sinks=s, rope=rope)
            assert torch.allclose(got[:w], whole[:w], atol=1e-9), name
            book.add(f"{name}-{rope}", got[at], kind="window", ids=ids, audio=clips, at=at,
                     kv=dict(window=w, sinks=s, rope=rope))  # fmt: skip


def mel_cases(book, ck):
    clips = [("mel-201", clip(JFK, 9000, 201), 1), ("mel-2.013s", clip(JFK, 5000, 32209), 3)]
    for name, c, step in clips:
        pcm = samples_of(c)
        mel = ck.features(pcm)["input_features"][0]
        frames = mel.shape[1]
        error = (mel - reference.log_mel_reflected(pcm)).abs().max().item()
        assert frames == len(pcm) // 160 and error < 1e-4, (name, error)
        book.add(name, mel[:, ::step], key="mel_tensor", kind="mel", audio=[c], frames=frames,
                 frame_step=step, edge="reflected", f32_error=float(f"{error:.2g}"))  # fmt: skip


def embed_cases(book, ck):
    clips = [
        ("201", clip(JFK, 9000, 201), 1),
        ("0.09s", clip(JFK, 9000, 1440), 1),
        ("0.5s", clip(JFK, 8000, 8000), 1),
        ("1s", clip(JFK, 16000, 16000), 1),
        ("1.013s-odd", clip(JFK, 5000, 16209), 1),
        ("3.7s", clip(NIGHT, 16000, 59200), 1),
        ("8s", clip(JFK, 16000, 128000), 3),
        ("9.3s-quiet-start-odd", clip(JFK, 38400, 137000), 3),
        ("17.2s", clip(NIGHT, 100000, 275200), 7),
        ("30s", clip(NIGHT, 0, 480000), 7),
    ]
    for name, c, step in clips:
        pcm = samples_of(c)
        whole, own = ck.rows(pcm), ck.own_rows(pcm)
        error = (whole - own).abs().max().item()
        assert whole.shape == own.shape and error < 1e-3, (name, error)
        assert len(whole) == audio_rows(len(pcm)), name
        book.add(f"embed-{name}", whole[::step], kind="embed", audio=[c], rows=len(whole),
                 row_step=step, f32_error=float(f"{error:.2g}"))  # fmt: skip
        rest = len(pcm) % RATE
        if 0 < rest < 1280:
            continue  # live, a last frame of less than 80 ms is silence up to there
        rows = reference.aut_stream(ck.w, ck.audio, reference.stream_blocks(pcm, 100))
        n = min(len(rows), len(whole))  # offline, the samples behind the last whole hop don't count
        rms = (rows[:n] - whole[:n]).square().mean() / whole[:n].square().mean()
        book.add(f"stream-{name}", rows[::step], kind="stream", audio=[c], rows=len(rows),
                 row_step=step, rms_to_whole=float(f"{rms.sqrt().item():.5g}"))  # fmt: skip


def make(name, spec, root):
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    tok = make_tokenizer(spec, folder, SPECIALS)
    config = make_config(spec, tok)
    write_config(spec, config, folder)
    write_weights(spec, make_weights(spec), folder, DECOYS if spec["whole"] else None)
    ck, book = Checkpoint(folder, config), Book()
    logit_cases(book, ck, tok, spec)
    if spec["whole"]:
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
