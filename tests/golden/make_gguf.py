"""Make GGUF files and what the tests of them compare with.

    python make_gguf.py [WEIGHTS]    (needs requirements.txt; seconds)

  gguf/blocks     random blocks of each quantised type, and what the gguf package makes of them
  gguf/omni-b, gguf/qwen3-a
                  twins of the checkpoints of these names: text model and audio tower
  gguf/qwen2, gguf/qwen3, gguf/qwen3moe
                  text models of random blocks, and what transformers makes of their plain values
  ../fuzz/corpus/gguf
                  small files, good ones and bad ones
  gguf/hard.json, gguf/real.json
                  with WEIGHTS, the folder of REAL, and packages llama-cpp-python, accelerate:
                  odd strings and llama.cpp's ids for them, and log-probs by transformers
"""

import json
import random
import struct
import sys
import unicodedata
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2TokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from common import HERE, TEXTS, Book, near, write_lines

OUT = HERE / "gguf"
REAL = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
CORPUS = HERE.parent / "fuzz" / "corpus" / "gguf"

# ---------------------------------------------------------------------------------------------
# Blocks

# Where the f16 scales of a block lie.
SCALES = {
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
    Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
}  # fmt: skip
# Subnormal, negative, largest and zero scales beside ordinary ones.
ODD = [2.0**-24, -0.75, 65504.0, 0.0, -(2.0**-15)]


def put_scale(block, at, values):
    block[:, at : at + 2] = np.asarray(values, dtype="<f2").view(np.uint8).reshape(-1, 2)


def random_blocks(rng, kind, n):
    """[n, bytes]: any bits; scales are 1 until they are put."""
    block = rng.integers(0, 256, (n, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    for at in SCALES[kind]:
        put_scale(block, at, np.ones(n))
    return block


def blocks():
    folder = OUT / "blocks"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for kind in SCALES:
        n = 8 if gguf.GGML_QUANT_SIZES[kind][0] == 256 else 12
        block = random_blocks(rng, kind, n)
        for i, at in enumerate(SCALES[kind]):
            scale = rng.normal(0, 0.02, n)
            scale[: len(ODD)] = np.roll(ODD, i)
            put_scale(block, at, scale)
        block.tofile(folder / f"{kind.name.lower()}.blocks")
        gguf.dequantize(block, kind).astype("<f4").tofile(folder / f"{kind.name.lower()}.f32")
    rows = rng.normal(0, 1, 32 * 24).astype("<f4")
    rows *= np.repeat(2.0 ** rng.integers(-20, 8, 24), 32).astype("<f4")
    rows[64:96] = 0
    rows.tofile(folder / "rows.f32")
    gguf.quantize(rows.reshape(1, -1), Type.Q8_0).tofile(folder / "rows.q8_0")


def random_matrix(rng, kind, rows, cols, sigma):
    """Bytes [rows, row bytes] of a type, of about this deviation and mean 0, and their values."""
    if kind not in SCALES:
        w = rng.normal(0, sigma, (rows, cols)).astype("<f4")
        raw = gguf.quantize(w, kind)
        return raw, gguf.dequantize(raw, kind).astype("<f4").reshape(rows, cols)
    size, _ = gguf.GGML_QUANT_SIZES[kind]
    block = random_blocks(rng, kind, rows * cols // size)
    one = gguf.dequantize(block, kind)
    scales = SCALES[kind]
    if len(scales) == 2:  # a minimum, too: without it first, then as much as the mean takes away
        put_scale(block, 2, np.zeros(len(block)))
        one = gguf.dequantize(block, kind)
        shift = one.mean() / (32 if kind in (Type.Q4_K, Type.Q5_K) else -1)
        put_scale(block, 2, np.full(len(block), shift))
        one = gguf.dequantize(block, kind)
    scale = sigma / one.std() * rng.uniform(0.8, 1.2, len(block))
    for i, at in enumerate(scales):
        put_scale(block, at, scale if i == 0 else scale * shift)
    raw = block.reshape(rows, -1)
    return raw, gguf.dequantize(raw, kind).astype("<f4").reshape(rows, cols)


# ---------------------------------------------------------------------------------------------
# Writing

TEXT = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
}  # fmt: skip
AUDIO = {
    "self_attn_layer_norm": "ln1", "final_layer_norm": "ln2", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_out",
    "fc1": "ffn_up", "fc2": "ffn_down",
}  # fmt: skip
TOP = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "audio_tower.conv1": "a.conv1d.1", "audio_tower.conv2": "a.conv1d.2",
    "audio_tower.conv2d1": "a.conv2d.1", "audio_tower.conv2d2": "a.conv2d.2",
    "audio_tower.conv2d3": "a.conv2d.3", "audio_tower.conv_out": "a.conv_out",
    "audio_tower.ln_post": "a.post_ln", "audio_tower.proj": "mm.a.fc",
    "audio_tower.proj1": "mm.a.mlp.1", "audio_tower.proj2": "mm.a.mlp.2",
}  # fmt: skip


def gguf_name(name):
    stem, _, end = name.rpartition(".")
    if stem in TOP:
        return f"{TOP[stem]}.{end}"
    kinds = ("model.layers.", "blk", TEXT), ("audio_tower.layers.", "a.blk", AUDIO)
    for start, block, table in kinds:
        if stem.startswith(start):
            layer, _, rest = stem.removeprefix(start).partition(".")
            return f"{block}.{layer}.{table[rest]}.{end}"
    raise KeyError(name)


def add_tensor(w, name, t):
    """Matrices keep their type; vectors and convolutions are F32."""
    if ".conv" in name and name.endswith(".bias"):
        t = t.reshape(-1, *[1] * (2 if "conv2d" in name else 1))
    if t.dtype == torch.bfloat16 and t.dim() == 2 and ".conv" not in name:
        raw = np.ascontiguousarray(t.contiguous().view(torch.int16).numpy()).view(np.uint8)
        w.add_tensor(name, raw, raw_dtype=Type.BF16)
    else:
        w.add_tensor(name, np.ascontiguousarray(t.float().numpy()))


def add_stacks(w, layers, experts, weights):
    for i in range(layers if experts else 0):
        for which in "gate", "up", "down":
            one = [weights.pop(f"model.layers.{i}.mlp.experts.{e}.{which}_proj.weight")
                   for e in range(experts)]  # fmt: skip
            stack = torch.stack(one)
            name = f"blk.{i}.ffn_{which}_exps.weight"
            if stack.dtype == torch.bfloat16:
                raw = np.ascontiguousarray(stack.view(torch.int16).numpy()).view(np.uint8)
                w.add_tensor(name, raw, raw_dtype=Type.BF16)
            else:
                w.add_tensor(name, stack.numpy())


def text_keys(w, arch, c):
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    if c.get("head_dim"):
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
    w.add_rope_freq_base(c.get("rope_theta") or c["rope_parameters"]["rope_theta"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    if "moe" in arch:
        w.add_expert_count(c["num_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])


def add_vocabulary(w, tok, rows, hide=()):
    """As the converter does: rows without a token are [PADi], unused. hide: these, too."""
    doc = json.loads(tok.to_str())
    added = {t["id"]: t for t in doc["added_tokens"] if t["content"] not in hide}
    back = {i: t for t, i in doc["model"]["vocab"].items()}
    back = {i: t for i, t in back.items() if t not in hide}
    tokens, types = [], []
    for i in range(rows):
        if i in added:
            kind = gguf.TokenType.CONTROL if added[i]["special"] else gguf.TokenType.USER_DEFINED
            tokens.append(added[i]["content"])
        elif i in back:
            kind = gguf.TokenType.NORMAL
            tokens.append(back[i])
        else:
            kind = gguf.TokenType.UNUSED
            tokens.append(f"[PAD{i}]")
        types.append(kind)
    merges = [m if isinstance(m, str) else " ".join(m) for m in doc["model"]["merges"]]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(merges)
    w.add_eos_token_id(tok.token_to_id("<|im_end|>"))
    w.add_bos_token_id(tok.token_to_id("<|endoftext|>"))


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


# ---------------------------------------------------------------------------------------------
# Twins


def plain(text):
    """Where llama.cpp and the library agree: it neither normalises nor folds case."""
    return unicodedata.normalize("NFC", text) == text and "\u017f" not in text


def twin(name, arch, projector):
    source, folder = HERE / name, OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    config = config.get("thinker_config", config)
    text, audio = config["text_config"], config["audio_config"]
    weights = {}
    for file in sorted(source.glob("model*.safetensors")):
        weights.update(load_file(file))
    weights = {n.removeprefix("thinker."): t for n, t in weights.items()}
    ours = ("model.", "lm_head.", "audio_tower.")
    weights = {n: t for n, t in weights.items() if n.startswith(ours)}
    weights.pop("audio_tower.audio_bos_eos_token.weight", None)

    w = gguf.GGUFWriter(folder / "model.gguf", arch)
    text_keys(w, arch, text)
    w.add_rope_dimension_sections([2, 3, 3, 0])
    if (source / "tokenizer.json").exists():
        tok = Tokenizer.from_file(str(source / "tokenizer.json"))
    else:
        tok = Qwen2TokenizerFast.from_pretrained(source).backend_tokenizer
    add_vocabulary(w, tok, len(weights["model.embed_tokens.weight"]))
    add_stacks(w, text["num_hidden_layers"], text.get("num_experts", 0), weights)
    for n, t in weights.items():
        if not n.startswith("audio_tower."):
            add_tensor(w, gguf_name(n), t.float() if ".mlp.gate." in n else t)
    finish(w)
    write_lines(folder / "tokens.json",
                [dict(text=t, ids=tok.encode(t).ids) for t in TEXTS if plain(t)])  # fmt: skip

    w = gguf.GGUFWriter(folder / "mmproj.gguf", "clip")
    w.add_clip_has_audio_encoder(True)
    if projector == "qwen3a":
        w.add_clip_audio_projector_type(projector)
    else:
        w.add_clip_projector_type(projector)
    w.add_audio_projection_dim(audio["output_dim"])
    w.add_audio_embedding_length(audio["d_model"])
    w.add_audio_feed_forward_length(audio["encoder_ffn_dim"])
    w.add_audio_block_count(audio["encoder_layers"])
    w.add_audio_head_count(audio["encoder_attention_heads"])
    w.add_audio_num_mel_bins(audio["num_mel_bins"])
    w.add_audio_attention_layernorm_eps(1e-5)
    w.add_tensor("a.position_embd.weight", np.full((3, audio["d_model"]), 77, dtype="<f4"))
    for n, t in weights.items():
        if n.startswith("audio_tower."):
            add_tensor(w, gguf_name(n), t)
    finish(w)


# ---------------------------------------------------------------------------------------------
# Text models of blocks

Q = Type
MODELS = {
    "qwen2": dict(
        seed=11, make=(Qwen2Config, Qwen2ForCausalLM), bias=True, tied=True, embed=Q.Q6_K,
        config=dict(vocab_size=424, hidden_size=256, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=2, intermediate_size=256, rope_theta=1e6),
        kinds=[
            dict(q=Q.Q4_K, k=Q.Q6_K, v=Q.Q8_0, o=Q.Q4_0, gate=Q.Q5_K, up=Q.Q4_K, down=Q.Q6_K),
            dict(q=Q.Q5_0, k=Q.Q4_1, v=Q.Q5_1, o=Q.Q4_K, gate=Q.Q5_0, up=Q.Q4_0, down=Q.Q5_K),
        ],
    ),
    "qwen3": dict(
        seed=12, make=(Qwen3Config, Qwen3ForCausalLM), embed=Q.Q4_0, head=Q.Q8_0,
        config=dict(vocab_size=300, hidden_size=96, num_hidden_layers=2, num_attention_heads=3,
                    num_key_value_heads=1, head_dim=64, intermediate_size=160, rope_theta=1e4),
        kinds=[
            dict(q=Q.Q5_1, k=Q.Q4_1, v=Q.Q5_0, o=Q.Q8_0, gate=Q.Q4_0, up=Q.Q5_0, down=Q.Q4_1),
            dict(q=Q.F16, k=Q.BF16, v=Q.F32, o=Q.Q4_0, gate=Q.Q8_0, up=Q.Q5_1, down=Q.Q8_0),
        ],
    ),
    "qwen3moe": dict(
        seed=13, make=(Qwen3MoeConfig, Qwen3MoeForCausalLM), embed=Q.Q8_0, head=Q.F16,
        config=dict(vocab_size=300, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=2, head_dim=32, intermediate_size=128, rope_theta=1e6,
                    num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32,
                    norm_topk_prob=True, decoder_sparse_step=1),
        kinds=[
            dict(q=Q.Q8_0, k=Q.Q8_0, v=Q.Q8_0, o=Q.Q5_0, gate=Q.Q4_0, up=Q.Q5_1, down=Q.Q8_0),
            dict(q=Q.Q8_0, k=Q.Q4_0, v=Q.F16, o=Q.Q8_0, gate=Q.Q8_0, up=Q.Q4_1, down=Q.Q5_0),
        ],
    ),
}  # fmt: skip


def text_model(name, spec):
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(spec["seed"])
    make_config, make_model = spec["make"]
    config = make_config(**spec["config"], max_position_embeddings=4096, rms_norm_eps=1e-6,
                         tie_word_embeddings=spec.get("tied", False))  # fmt: skip
    model = make_model(config).eval().float()
    state = {}
    w = gguf.GGUFWriter(folder / "model.gguf", name)
    text_keys(w, name, config.to_dict())

    def matrix(hf, ours, kind, rows, cols, sigma=None, stack=0):
        sigma = sigma or cols**-0.5
        if stack:
            parts = [random_matrix(rng, kind, rows, cols, sigma) for _ in range(stack)]
            w.add_tensor(ours, np.stack([raw for raw, _ in parts]), raw_dtype=kind)
            for e, (_, value) in enumerate(parts):
                state[hf.format(e)] = torch.from_numpy(value)
            return
        raw, value = random_matrix(rng, kind, rows, cols, sigma)
        w.add_tensor(ours, raw, raw_dtype=kind)
        state[hf] = torch.from_numpy(value)

    def vector(hf, n, mean, sigma):
        value = rng.normal(mean, sigma, n).astype("<f4")
        w.add_tensor(gguf_name(hf), value)
        state[hf] = torch.from_numpy(value)

    c = config
    hd = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    q, kv, hidden = c.num_attention_heads * hd, c.num_key_value_heads * hd, c.hidden_size
    experts = getattr(c, "num_experts", 0)
    matrix("model.embed_tokens.weight", "token_embd.weight", spec["embed"], c.vocab_size, hidden,
           0.1)  # fmt: skip
    for i, kind in enumerate(spec["kinds"]):
        p, b = f"model.layers.{i}.", f"blk.{i}."
        vector(p + "input_layernorm.weight", c.hidden_size, 1, 0.1)
        vector(p + "post_attention_layernorm.weight", c.hidden_size, 1, 0.1)
        for which, rows in ("q", q), ("k", kv), ("v", kv):
            hf, ours = f"{p}self_attn.{which}_proj.weight", f"{b}attn_{which}.weight"
            matrix(hf, ours, kind[which], rows, hidden)
            if spec.get("bias"):
                vector(f"{p}self_attn.{which}_proj.bias", rows, 0, 0.1)
            elif which != "v":
                vector(f"{p}self_attn.{which}_norm.weight", hd, 1, 0.1)
        matrix(p + "self_attn.o_proj.weight", b + "attn_output.weight", kind["o"], c.hidden_size, q)
        if experts:
            matrix(p + "mlp.gate.weight", b + "ffn_gate_inp.weight", Type.F32, experts, hidden)
        ffn = c.moe_intermediate_size if experts else c.intermediate_size
        end = "_exps.weight" if experts else ".weight"
        for which, rows, cols in (("gate", ffn, c.hidden_size), ("up", ffn, c.hidden_size),
                                  ("down", c.hidden_size, ffn)):  # fmt: skip
            hf = f"{p}mlp.{'experts.{}.' if experts else ''}{which}_proj.weight"
            matrix(hf, f"{b}ffn_{which}{end}", kind[which], rows, cols, stack=experts)
    vector("model.norm.weight", c.hidden_size, 1, 0.1)
    if "head" in spec:
        matrix("lm_head.weight", "output.weight", spec["head"], c.vocab_size, c.hidden_size, 0.2)
    missing, extra = model.load_state_dict(state, strict=False)
    assert not extra and set(missing) <= ({"lm_head.weight"} if spec.get("tied") else set())
    model.tie_weights()
    if name == "qwen2":  # as of a text model: nothing for audio, and rows that nobody uses
        tok = Qwen2TokenizerFast.from_pretrained(HERE / "omni-b").backend_tokenizer
        add_vocabulary(w, tok, c.vocab_size, hide=("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"))
    finish(w)

    book = Book()
    exact = make_model(config).eval().double()
    exact.load_state_dict({n: t.double() for n, t in state.items()}, strict=False)
    exact.tie_weights()
    for n in 3, 150:
        ids = rng.integers(0, 250, n).tolist()
        at = near([0, 1, 2, 31, 64, n - 1], n)
        got = model(torch.tensor([ids])).logits[0, at].float().log_softmax(-1)
        best = exact(torch.tensor([ids])).logits[0, at].log_softmax(-1)
        error = (got - best).abs().max().item()
        assert error < 1e-4, (name, error)
        print(name, n, error, got.max(-1).values.tolist()[-1])
        book.add(f"text-{n}", got, kind="logits", ids=ids, audio=[], at=at, kv=None,
                 f32_error=float(f"{error:.2g}"))  # fmt: skip
    book.write(folder)


# ---------------------------------------------------------------------------------------------
# Small files for the fuzzer


def text(s):
    s = s.encode()
    return struct.pack("<Q", len(s)) + s


def small_file(
    version=3, align=32, tensors=2, keys=None, data=128, offsets=(0, 64), kind=8, dims=(32, 1)
):
    """A few keys of every kind, two tensors; parts of it can be made wrong."""
    head = [
        text("general.architecture") + struct.pack("<I", 8) + text("qwen2"),
        text("general.alignment") + struct.pack("<II", 4, align),
        text("qwen2.block_count") + struct.pack("<II", 4, 1),
        text("f") + struct.pack("<If", 6, 1e6),
        text("b") + struct.pack("<IB", 7, 1),
        text("tokenizer.ggml.model") + struct.pack("<I", 8) + text("gpt2"),
        text("tokenizer.ggml.pre") + struct.pack("<I", 8) + text("qwen2"),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3)
        + b"".join(text(s) for s in ("a", "b", "ab")),
        text("tokenizer.ggml.token_type") + struct.pack("<IIQ3i", 9, 5, 3, 1, 1, 1),
        text("tokenizer.ggml.merges") + struct.pack("<IIQ", 9, 8, 1) + text("a b"),
        text("u") + struct.pack("<IQ", 10, 2**64 - 1),
    ]
    out = b"GGUF" + struct.pack("<IQQ", version, tensors, len(head) if keys is None else keys)
    out += b"".join(head)
    for name, offset in zip(("token_embd.weight", "output.weight"), offsets):
        out += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    out += b"\0" * (-len(out) % align if align else 0)
    return out + bytes(range(data))


def corpus():
    CORPUS.mkdir(parents=True, exist_ok=True)
    good = small_file()
    files = {
        "good": good, "version-2": small_file(version=2), "version-1": small_file(version=1),
        "many-keys": small_file(keys=2**63), "many-tensors": small_file(tensors=2**40),
        "overlap": small_file(offsets=(0, 32)), "past-end": small_file(offsets=(0, 2**62)),
        "odd-offset": small_file(offsets=(0, 65)), "align-0": small_file(align=0),
        "align-3": small_file(align=3), "huge-dims": small_file(dims=(2**40, 2**40)),
        "type-4": small_file(kind=4),
        "type-2_k": small_file(kind=10, dims=(256, 1), offsets=(0, 96), data=192),
        "cut": good[:300], "no-data": small_file(data=0), "behind": small_file(data=160),
    }  # fmt: skip
    for name, data in files.items():
        (CORPUS / name).write_bytes(data)
    for name in "model.gguf", "mmproj.gguf":  # all that stands before the data
        whole = (OUT / "qwen3-a" / name).read_bytes()
        reader = gguf.GGUFReader(OUT / "qwen3-a" / name)
        (CORPUS / name.split(".")[0]).write_bytes(whole[: reader.data_offset])


# ---------------------------------------------------------------------------------------------
# Odd strings


def odd_strings(n):
    """Seeded: pieces of words, special tokens, and characters of all scripts."""
    pools = [
        range(32, 127), [9, 10, 11, 12, 13, 32, 0x85, 0xA0, 0x1680, 0x180E, *range(0x2000, 0x2010),
                         0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF, 0x200B],
        range(0xC0, 0x250), range(0x370, 0x600), range(0x900, 0xC00), range(0x1100, 0x1200),
        range(0x4E00, 0x4F00), range(0xAC00, 0xAD00), range(0x300, 0x370), range(0x1F300, 0x1F650),
        [*range(0x660, 0x66A), *range(0x2150, 0x2190), 0xBD, 0xB2, 0x3007], range(0x1D400, 0x1D500),
        range(0x20, 0x2FF0, 7),
    ]  # fmt: skip
    words = [
        "don't", "I'LL", "we've", "'S", "the", " and", "<|im_start|>", "<|im_end|>", "<tool_call>",
        "</tool_call>", "\n\n", "  ", "\t", "123", "3.14", "!!", "...", "__", "/*",
        "<|fim_prefix|>", "<|endoftext|>", "\u00e9", "\u0301", "\u017f", "'\u017f", "\u212a",
        "\u00a0", "\u3000",
        "\u4f60\u597d", "\ud55c", "\U0001f600", "\U0001f3fd", "\u200d", "a", "B", "\u00df",
        "\ufb01",
    ]  # fmt: skip
    rnd = random.Random(1)
    out = list(TEXTS)
    while len(out) < n:
        parts = [
            rnd.choice(words) if rnd.random() < 0.4 else chr(rnd.choice(rnd.choice(pools)))
            for _ in range(rnd.randrange(1, 20))
        ]
        out.append("".join(parts))
    return out


def hard(weights):
    from llama_cpp import Llama

    llm = Llama(f"{weights}/{REAL}", vocab_only=True, verbose=False)
    cases = [
        dict(text=t, ids=llm.tokenize(t.encode(), add_bos=False, special=True))
        for t in odd_strings(400)
    ]
    write_lines(OUT / "hard.json", cases)


def real(weights):
    model = AutoModelForCausalLM.from_pretrained(
        weights, gguf_file=REAL, dtype=torch.float32
    ).eval()
    # "The capital of France is Paris. In 1961, ask what together you can"
    ids = [785, 6722, 315, 9625, 374, 12095, 13, 758, 220, 16, 24, 21, 16, 11, 2548, 1128]
    ids += [3786, 498, 646]
    rows = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    at = []
    for p in 0, 4, 12, len(ids) - 1:
        some = rows[p].topk(30).indices.tolist() + list(range(0, rows.shape[1], 15193))
        at.append(dict(pos=p, ids=some, logprobs=[float(f"{rows[p][i]:.9g}") for i in some]))
    (OUT / "real.json").write_text(json.dumps(dict(ids=ids, at=at)) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.no_grad():
        blocks()
        twin("omni-b", "qwen2vl", "qwen2.5o")
        twin("qwen3-a", "qwen3vlmoe", "qwen3a")
        for name, spec in MODELS.items():
            text_model(name, spec)
        corpus()
        if len(sys.argv) > 1:
            hard(sys.argv[1])
            real(sys.argv[1])
