#!/usr/bin/env python3
"""The two forms of attention against each other, and the whole model against the reference of
tests/golden: selftest.py"""

import sys
from pathlib import Path

import torch

import sound
from batches import log_mel
from model import (
    EAR_HEADS,
    EAR_LAYERS,
    EPS,
    FFN,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    THETA,
    WIDTH,
    Thinker,
    attend,
    attend_call,
    shared,
)
from task import Chat, make_tokenizer

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "golden"))
import reference  # noqa: E402


def main():
    torch.manual_seed(3)
    for n, window, sinks in (200, 70, 4), (200, 64, 0), (333, 100, 80), (64, 17, 5), (130, None, 0):
        q, k, v = (torch.randn(h, n, HIDDEN // HEADS) for h in (HEADS, KV_HEADS, KV_HEADS))
        b = attend_call(q, k, v, window, sinks)
        k, v = shared(k), shared(v)
        a = attend(q, k, v, 0, window, sinks)
        assert (a - b).abs().max() < 1e-5, (n, window, sinks)
        part = attend(q[:, n - 9 :], k, v, n - 9, window, sinks)
        assert (part - a[:, n - 9 :]).abs().max() < 1e-5
    chat = Chat(make_tokenizer())
    ids, _, _ = chat.build([0, 1], ["12", "thank you"], window=90, sinks=4)
    thinker = Thinker().eval()
    pcm = torch.randn(2 * sound.FRAME).clamp(-1, 1) * 0.1
    pcm[: sound.RATE] *= 0.01
    mels = list(reference.stream_blocks(pcm, sound.COLUMNS))
    power = torch.from_numpy(sound.call_columns(pcm.numpy()))
    own = log_mel(power)
    for a, b in zip(own, mels):
        assert (a - b).abs().max() < 1e-3, (a - b).abs().max()
    w = {n: t.double() for n, t in thinker.state_dict().items()}
    ear = dict(
        encoder_attention_heads=EAR_HEADS, encoder_layers=EAR_LAYERS, n_window=100, d_model=WIDTH
    )
    lm = dict(
        rms_norm_eps=EPS, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, rope_theta=THETA,
        num_hidden_layers=LAYERS, intermediate_size=FFN, audio_token_index=chat.audio,
    )  # fmt: skip
    rows = [reference.tower(w, ear, m) for m in mels]
    for window, sinks in (None, 0), (90, 4):
        x = reference.embed(w, lm, ids, rows)
        want = reference.language_model(w, lm, x, window, sinks, "cache")
        t = torch.tensor(ids)
        with torch.no_grad():
            _, mine = thinker.audio_tower(own)
            got = thinker(t, t == chat.audio, mine, [(len(ids), window, sinks)])
            got = thinker.lm_head(got).log_softmax(-1)
        error = (got - want).abs().max().item()
        assert error < 1e-3, error
        print(f"window {window}, sinks {sinks}: within {error:.1e} of the reference")


if __name__ == "__main__":
    sys.exit(main())
