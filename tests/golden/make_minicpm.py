"""Make the tiny random checkpoint minicpm-a and what the authors' own code computes with it.

    MINICPM=DIR python make_minicpm.py

DIR is a checkout of https://github.com/OpenBMB/MiniCPM-o-Demo at commit
28b60cfb2a4d7156d045121e9ca2d31cd33f5d5d. Their code wants transformers 4.51.0 (with pillow and
tqdm), else requirements.txt holds. Theirs are: the encoder, whole clip and streamed, the front end
of both, the language model, and the duplex loop with its choice of tokens. The windowed cases are
reference.py's.
"""

import json
import os
import sys
from pathlib import Path
from threading import Event

import numpy as np
import torch
from safetensors.torch import load_file

import common
import reference
from common import JFK, NIGHT, Book, clip, near, samples_of

sys.path.insert(0, os.environ["MINICPM"])
from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.modeling_minicpmo import MiniCPMO, MiniCPMODuplex
from MiniCPMO45.processing_minicpmo import MiniCPMAAudioProcessor, MiniCPMOProcessor
from MiniCPMO45.tokenization_minicpmo_fast import MiniCPMOTokenizerFast
from MiniCPMO45.utils import StreamDecoder

HERE = Path(__file__).parent
SPECIALS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>", "<unit>", "</unit>", "<image>",
    "</image>", "<slice>", "</slice>", "<|audio_start|>", "<|audio|>", "<|audio_end|>", "<|tts_bos|>",
    "<|tts_eos|>", "<|listen|>", "<|speak|>", "<|turn_eos|>", "<|chunk_eos|>", "<|chunk_tts_eos|>",
    "<|tts_pad|>",
]  # fmt: skip
# How much louder than a word each of these is drawn, so that a random model takes every branch.
LOUD = {
    "<|listen|>": 2.2, "<|turn_eos|>": 2.0, "<|chunk_eos|>": 1.9, "<|chunk_tts_eos|>": 2.3,
    "<|tts_pad|>": 2.0, "<|speak|>": 1.3,
}  # fmt: skip
SPECS = {
    "minicpm-a": dict(
        seed=4, vocab=416, hidden=48, layers=2, heads=3, kv_heads=1, head_dim=16, ffn=72, theta=1e6,
        d_model=30, audio_heads=3, audio_layers=2, audio_ffn=120, dtype=torch.bfloat16, shards=4,
        tokenizer="vocab.json",
    ),
}  # fmt: skip


def make_config(spec):
    text = dict(
        vocab_size=spec["vocab"], hidden_size=spec["hidden"], intermediate_size=spec["ffn"],
        num_hidden_layers=spec["layers"], num_attention_heads=spec["heads"],
        num_key_value_heads=spec["kv_heads"], head_dim=spec["head_dim"], rope_theta=spec["theta"],
        max_position_embeddings=40960, rms_norm_eps=1e-6, tie_word_embeddings=False,
    )  # fmt: skip
    audio = dict(
        num_mel_bins=80, d_model=spec["d_model"], encoder_layers=spec["audio_layers"],
        encoder_attention_heads=spec["audio_heads"], encoder_ffn_dim=spec["audio_ffn"],
        max_source_positions=1500,
    )
    config = MiniCPMOConfig(
        audio_config=audio, init_vision=False, init_tts=False, attn_implementation="eager", **text
    )
    config.audio_config._attn_implementation = "eager"
    return config, text, audio


def write_config(spec, text, audio, folder):
    """As released: the text model's fields at the root, the parts nested."""
    common.write_json(folder / "config.json", {
        "architectures": ["MiniCPMO"], "model_type": "minicpmo", "version": "4.5",
        "audio_pool_step": 5, "audio_chunk_length": 1.0, "attention_bias": False,
        "hidden_act": "silu", "query_num": 64, "stream_input": True, "use_sliding_window": False,
        "torch_dtype": str(spec["dtype"]).removeprefix("torch."), **text,
        "audio_config": {"model_type": "whisper", "activation_function": "gelu", **audio},
        "vision_config": {"model_type": "siglip", "hidden_size": 16},
        "tts_config": {"model_type": "minicpmtts", "hidden_size": 16},
    })  # fmt: skip


def make_weights(spec, model, tok):
    """Random weights under the names of the release."""
    gen = torch.Generator().manual_seed(spec["seed"])
    weights = {}
    for name, t in sorted(model.state_dict().items()):
        noise = torch.randn(t.shape, generator=gen)
        if name.endswith("norm.weight"):
            t = 1 + 0.1 * noise
        elif name.endswith("bias"):
            t = 0.1 * noise
        elif name.endswith("embed_positions.weight"):
            t = 0.7 * noise
        elif name.endswith("embed_tokens.weight"):
            t = noise
        elif name.endswith("lm_head.weight"):
            t = 3 * noise / t.shape[1] ** 0.5
            for text, gain in LOUD.items():
                t[tok.convert_tokens_to_ids(text)] *= gain
        else:
            t = noise / t[0].numel() ** 0.5
        weights[name] = t.to(spec["dtype"])
    return weights


class Checkpoint:
    def __init__(self, spec, folder, config, tok):
        self.tok = tok
        self.model = MiniCPMO(config).eval().float()
        self.processor = self.make_processor(tok)
        weights = make_weights(spec, self.model, tok)
        decoys = {
            "vpm.embeddings.patch_embedding.weight": (16, 3, 2, 2), "resampler.query": (4, 16),
            "tts.emb_text.weight": (8, 16), "llm.model.embed_tokens.weight_scale": (1,),
        }  # fmt: skip
        common.write_weights(spec, weights, folder, decoys)
        self.model.load_state_dict({n: t.float() for n, t in weights.items()}, strict=True)
        self.model.processor = self.processor
        self.w = {n: t.double() for n, t in weights.items()}
        self.text = config.to_dict()

    @staticmethod
    def make_processor(tok):
        p = MiniCPMOProcessor.__new__(MiniCPMOProcessor)
        p.audio_processor = MiniCPMAAudioProcessor(feature_size=80)
        p.tokenizer = tok
        p.version = 4.5
        p._streaming_mel_processor = None
        return p

    def rows(self, pcm):
        """The encoder on a clip: its pieces of 30 s each by itself."""
        out = []
        for at in range(0, len(pcm), 30 * 16000):
            self.processor.audio_processor.set_spac_log_norm(dynamic_range_db=8)
            data = self.processor.process_audio([pcm[at : at + 30 * 16000]])
            got = self.model.get_audio_embedding(data, chunk_length=1.0)
            out += [t for g in got for t in g]
        return torch.cat(out)

    def log_probs(self, ids, clips):
        x = self.model.llm.model.embed_tokens(torch.tensor(ids))
        where = torch.tensor(ids) == self.tok.convert_tokens_to_ids("<unk>")
        if clips:
            x = x.clone()
            x[where] = torch.cat([self.rows(c) for c in clips])
        out = self.model.llm(inputs_embeds=x[None], use_cache=False)
        return out.logits[0].float().log_softmax(-1)

    def own_log_probs(self, ids, clips, **kv):
        w = {n.removeprefix("llm."): t for n, t in self.w.items() if n.startswith("llm.")}
        x = w["model.embed_tokens.weight"][ids].clone()
        if clips:
            where = torch.tensor(ids) == self.tok.convert_tokens_to_ids("<unk>")
            x[where] = torch.cat([self.rows(c) for c in clips]).double()
        return reference.language_model(w, self.text, x, **kv)

    def duplex(self):
        """Their duplex object, without the files, voice and device that its making wants."""
        d = MiniCPMODuplex.__new__(MiniCPMODuplex)
        d.model, d.tokenizer, d.processor = self.model, self.tok, self.processor
        d.device, d.generate_audio, d.ls_mode = "cpu", False, "explicit"
        d.break_event, d.session_stop_event = Event(), Event()
        d.force_listen_count = 0
        d.CHUNK_MS, d.FIRST_CHUNK_MS, d.CNN_REDUNDANCY_MS, d.SAMPLE_RATE = 1000, 1035, 20, 16000
        m = d.model
        m.CHUNK_MS, m.FIRST_CHUNK_MS, m.CNN_REDUNDANCY_MS, m.SAMPLE_RATE = 1000, 1035, 20, 16000
        ids = d.tokenizer.convert_tokens_to_ids
        d.unit_token_id = ids("<unit>")
        d.image_start_token_id, d.image_end_token_id = ids("<image>"), ids("</image>")
        d.slice_start_token_id, d.slice_end_token_id = ids("<slice>"), ids("</slice>")
        d.listen_token_id, d.speak_token_id = ids("<|listen|>"), ids("<|speak|>")
        d.tts_bos_token_id, d.tts_eos_token_id = ids("<|tts_bos|>"), ids("<|tts_eos|>")
        d.chunk_eos_token_id = ids("<|chunk_eos|>")
        d.chunk_tts_eos_token_id = ids("<|chunk_tts_eos|>")
        d.turn_eos_token_id = ids("<|turn_eos|>")
        d.chunk_terminator_token_ids = [
            d.listen_token_id, d.chunk_eos_token_id, d.chunk_tts_eos_token_id
        ]  # fmt: skip
        d.turn_terminator_token_ids = [d.turn_eos_token_id]
        d.chunk_speak_token_ids = [d.speak_token_id]
        forbidden = [ids("<|tts_pad|>")] + list(d.tokenizer.bad_token_ids)
        d.decoder = StreamDecoder(m.llm, d.tokenizer, forbidden_token_ids=forbidden)
        m.reset_session()
        d._reset_streaming_state()
        return d


def turn(tok, *parts):
    text = "<|im_start|>user\n"
    for p in parts:
        if isinstance(p, dict):
            n = -(-p["samples"] // 160)
            p = "<|audio_start|>" + "<unk>" * (((n - 1) // 2 + 1) // 5) + "<|audio_end|>"
        text += p
    return tok.encode(text + "<|im_end|>\n<|im_start|>assistant\n")


def logit_cases(book, ck, spec):
    rng = np.random.default_rng(100 + spec["seed"])
    a, b = clip(JFK, 0, 40000), clip(NIGHT, 80000, 20321)
    long = clip(NIGHT, 0, 480000)
    words = ck.tok.convert_tokens_to_ids("<|endoftext|>")
    cases = [
        ("text-short", turn(ck.tok, "Ask what you can do."), []),
        ("text-300", rng.integers(0, words, 300).tolist(), []),
        ("audio-2.5s", turn(ck.tok, a, "What was said?"), [a]),
        ("audio-two", turn(ck.tok, a, " and then ", b, "Compare."), [a, b]),
        ("audio-30s", turn(ck.tok, long), [long]),
    ]
    for name, ids, clips in cases:
        n = len(ids)
        at = near([0, 1, 7, 31, 64, 128, 255, n - 2, n - 1], n)
        pcm = [samples_of(c) for c in clips]
        got, own = ck.log_probs(ids, pcm)[at], ck.own_log_probs(ids, pcm)[at]
        error = (got - own).abs().max().item()
        assert error < 1e-4, (name, error)
        book.add(name, got, kind="logits", ids=ids, audio=clips, at=at, kv=None,
                 f32_error=float(f"{error:.2g}"))  # fmt: skip


def window_cases(book, ck, spec):
    rng = np.random.default_rng(200 + spec["seed"])
    words = ck.tok.convert_tokens_to_ids("<|endoftext|>")
    for w, s in (8, 0), (16, 4), (33, 5):
        n = 3 * w + 10
        ids = rng.integers(0, words, n).tolist()
        at = near([w - 1, w, w + 1, w + s, 2 * w, 3 * w + 7, n - 1], n)
        whole = ck.own_log_probs(ids, [])
        assert (whole - ck.log_probs(ids, [])).abs().max() < 1e-4
        for rope in "cache", "absolute":
            got = ck.own_log_probs(ids, [], window=w, sinks=s, rope=rope)
            book.add(f"W{w}-S{s}-{rope}", got[at], kind="window", ids=ids, audio=[], at=at,
                     kv=dict(window=w, sinks=s, rope=rope))  # fmt: skip


def embed_cases(book, ck):
    clips = [
        ("0.09s", clip(JFK, 16000, 1281), 1),
        ("0.15s-loud-end", clip(JFK, 8730, 2400), 1),
        ("2.013s-odd", clip(JFK, 5000, 32209), 1),
        ("11s", clip(JFK, 0, 176000), 3),
        ("30s", clip(NIGHT, 0, 480000), 7),
    ]
    for name, c, step in clips:
        rows = ck.rows(samples_of(c))
        book.add(f"embed-{name}", rows[::step], kind="embed", audio=[c], rows=len(rows),
                 row_step=step)  # fmt: skip


def call_of(seconds):
    """11 s of speech, 30 s of others, and so on: a call, as a list of clips."""
    out, at = [], 0
    for file, most in [(JFK, 11), (NIGHT, 30)] * 3:
        take = min(most, seconds - at)
        if take > 0:
            out.append(clip(file, 0, take * 16000))
        at += take
    return out


def unit_cases(book, ck):
    """The streaming encoder, up to where the authors would empty their cache."""
    for name, seconds in ("29s", 29), ("3s", 3):
        clips = call_of(seconds)
        pcm = np.concatenate([samples_of(c) for c in clips])
        d, rows = ck.duplex(), []
        d.prepare()
        feed = d.decoder.feed

        def keep(embeds, return_logits=False):
            if len(embeds) == 10:
                rows.append(embeds.clone())
            return feed(embeds, return_logits)

        d.decoder.feed = keep
        for k in range(seconds):
            result = d.streaming_prefill(audio_waveform=pcm[k * 16000 : (k + 1) * 16000])
            assert result["success"], result
        rows = torch.cat(rows)
        assert len(rows) == 10 * seconds
        book.add(f"units-{name}", rows[::3], kind="units", audio=clips, rows=len(rows), row_step=3)


def duplex_cases(book, ck):
    """Greedy streams of their own loop, with what each unit drew and said."""
    seen = set()
    prompts = {
        "plain": "Streaming Omni Conversation.",
        "words": "You hear a call.\nAsk what you can do for your country!",
        "none": "",
    }
    for name, system in prompts.items():
        clips = call_of(28)
        pcm = np.concatenate([samples_of(c) for c in clips])
        d, drawn, gaps = ck.duplex(), [], []
        decode = d.decoder.decode

        def note(logits, **kw):
            top = logits[0].topk(2).values
            gaps.append((top[0] - top[1]).item())
            drawn.append(decode(logits, **kw).item())
            return torch.tensor([drawn[-1]])

        d.decoder.decode = note
        if system:
            d.prepare(f"<|im_start|>system\n{system}\n<|audio_start|>", "<|audio_end|><|im_end|>")
        else:
            d.prepare()
        units = []
        for k in range(len(pcm) // 16000):
            drawn.clear()
            r = d.streaming_prefill(audio_waveform=pcm[k * 16000 : (k + 1) * 16000])
            assert r["success"], r
            r = d.streaming_generate(decode_mode="greedy")
            units.append(dict(drawn=list(drawn), text=r["text"]))
            seen.update(drawn)
        fed = d.decoder.get_cache_length()
        book.cases.append(dict(name=f"duplex-{name}", kind="duplex", system=system, audio=clips,
                               units=units, fed=fed))  # fmt: skip
        ends = [ck.tok.convert_ids_to_tokens(u["drawn"][-1]) for u in units]
        print(name, fed, f"closest {min(gaps):.2g}", {e: ends.count(e) for e in set(ends)})
        assert min(gaps) > 2e-4
    for t in ("<|listen|>", "<|turn_eos|>", "<|chunk_eos|>", "<|chunk_tts_eos|>", "<|speak|>"):
        assert ck.tok.convert_tokens_to_ids(t) in seen, t


def make(name, spec, root):
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    common.make_tokenizer(spec, folder, SPECIALS)
    path = folder / "tokenizer_config.json"
    doc = json.loads(path.read_text())
    rng = np.random.default_rng(spec["seed"])
    doc["bad_token_ids"] = sorted(rng.choice(256, 40, replace=False).tolist())
    doc["unk_token"] = "<unk>"
    common.write_json(path, doc)
    tok = MiniCPMOTokenizerFast.from_pretrained(folder)
    assert len(tok.bad_token_ids) == 40
    common.write_lines(folder / "tokens.json", [
        dict(text=t, ids=tok.encode(t, add_special_tokens=False)) for t in common.TEXTS
    ])  # fmt: skip
    config, text, audio = make_config(spec)
    write_config(spec, text, audio, folder)
    ck, book = Checkpoint(spec, folder, config, tok), Book()
    logit_cases(book, ck, spec)
    embed_cases(book, ck)
    window_cases(book, ck, spec)
    unit_cases(book, ck)
    duplex_cases(book, ck)
    book.write(folder)
    for case in book.cases:
        print(name, case["name"], case.get("f32_error", ""))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.no_grad():
        for name, spec in SPECS.items():
            make(name, spec, HERE)
