#!/usr/bin/env python3
"""The trained weights in the released layout: export.py [--check] RUN FOLDER

RUN/state.pt's averaged weights become FOLDER/model.safetensors in bfloat16 under the released
names, with config.json and tokenizer.json beside them. --check: transformers loads the folder, and
its logits on a made-up call are ours.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import model as m
from batches import log_mel
from sound import BANDS, COLUMNS, FRAME, call_columns
from task import SILENCE, VOCAB, Chat, make_tokenizer


def config(tok):
    def token(text):
        return tok.token_to_id(text)

    thinker = dict(
        model_type="qwen2_5_omni_thinker",
        architectures=["Qwen2_5OmniThinkerForConditionalGeneration"],
        audio_config=dict(
            model_type="qwen2_5_omni_audio_encoder", num_mel_bins=BANDS, d_model=m.WIDTH,
            encoder_layers=m.EAR_LAYERS, encoder_attention_heads=m.EAR_HEADS,
            encoder_ffn_dim=m.EAR_FFN, output_dim=m.HIDDEN, n_window=COLUMNS // 2,
            max_source_positions=1500,
        ),
        vision_config=dict(  # there are no eyes: the smallest that the library builds
            model_type="qwen2_5_omni_vision_encoder", depth=1, hidden_size=16, intermediate_size=16,
            num_heads=2, patch_size=2, out_hidden_size=m.HIDDEN, fullatt_block_indexes=[0],
        ),
        text_config=dict(
            model_type="qwen2_5_omni_text", vocab_size=VOCAB, hidden_size=m.HIDDEN,
            intermediate_size=m.FFN, num_hidden_layers=m.LAYERS, num_attention_heads=m.HEADS,
            num_key_value_heads=m.KV_HEADS, max_position_embeddings=32768, rms_norm_eps=m.EPS,
            rope_theta=m.THETA,
            rope_scaling=dict(mrope_section=[4, 6, 6], rope_type="default", type="default"),
            tie_word_embeddings=False,
        ),
        audio_token_index=token("<|AUDIO|>"), audio_start_token_id=token("<|audio_bos|>"),
        audio_end_token_id=token("<|audio_eos|>"), image_token_index=token("<|IMAGE|>"),
        video_token_index=token("<|VIDEO|>"), vision_start_token_id=token("<|vision_bos|>"),
        vision_end_token_id=token("<|vision_eos|>"), pad_token_id=token("<|endoftext|>"),
        user_token_id=token("user"), tie_word_embeddings=False,
    )  # fmt: skip
    return dict(
        architectures=["Qwen2_5OmniModel"], model_type="qwen2_5_omni", torch_dtype="bfloat16",
        enable_audio_output=False, thinker_config=thinker,
    )  # fmt: skip


def load(folder):
    """The thinker as exported, in float32."""
    thinker = m.Thinker().eval()
    state = load_file(folder / "model.safetensors")
    thinker.load_state_dict({n.removeprefix("thinker."): t.float() for n, t in state.items()})
    return thinker


def write(mean, folder):
    folder.mkdir(parents=True, exist_ok=True)
    state = {n: t for n, t in mean.items() if n.startswith("thinker.")}
    state["thinker.audio_tower.audio_bos_eos_token.weight"].zero_()  # unused, as in the release
    state = {n: t.to(torch.bfloat16).contiguous() for n, t in sorted(state.items())}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    tok = make_tokenizer()
    tok.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(config(tok), indent=2) + "\n")
    size = (folder / "model.safetensors").stat().st_size
    print(f"{folder}: {len(state)} tensors, {size} bytes of weights")


def check(folder):
    from transformers import Qwen2_5OmniThinkerConfig, Qwen2_5OmniThinkerForConditionalGeneration

    doc = json.loads((folder / "config.json").read_text())["thinker_config"]
    theirs = Qwen2_5OmniThinkerForConditionalGeneration(Qwen2_5OmniThinkerConfig(**doc)).eval()
    state = load_file(folder / "model.safetensors")
    state = {n.removeprefix("thinker."): t.float() for n, t in state.items()}
    missing, extra = theirs.load_state_dict(state, strict=False)
    assert not extra and all(n.startswith("visual.") for n in missing), (missing, extra)
    r, chat = np.random.default_rng(5), Chat(make_tokenizer())
    mel = log_mel(torch.from_numpy(call_columns(r.normal(0, 0.1, 3 * FRAME).astype(np.float32))))
    ids, _, _ = chat.build([SILENCE] * 3, [""] * 3)
    t = torch.tensor(ids)
    thinker = load(folder)
    _, rows = thinker.audio_tower(mel)
    own = thinker.lm_head(thinker(t, t == chat.audio, rows, [(len(ids), None, 0)]))
    lib = theirs(
        input_ids=t[None], attention_mask=torch.ones_like(t[None]),
        input_features=mel.permute(1, 0, 2).reshape(1, BANDS, -1),
        feature_attention_mask=torch.ones(1, 3 * COLUMNS, dtype=torch.long),
    ).logits[0]  # fmt: skip
    error = (own.log_softmax(-1) - lib.log_softmax(-1)).abs().max().item()
    assert error < 1e-3, error
    print(f"transformers gives the same log-probabilities within {error:.1e}")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("run", type=Path)
    p.add_argument("folder", type=Path)
    p.add_argument("--check", action="store_true", help="against transformers")
    args = p.parse_args()
    torch.set_grad_enabled(False)
    write(torch.load(args.run / "state.pt")["mean"], args.folder)
    if args.check:
        check(args.folder)


if __name__ == "__main__":
    sys.exit(main())
