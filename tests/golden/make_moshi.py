"""Make the tiny random Moshi checkpoints moshi-a and moshi-b and what the authors' code says.

    python make_moshi.py             (needs requirements.txt; less than a minute on one core)

The values come from the `moshi` package; those under a window with sinks, which it does not have,
from moshi_reference.py, which is compared with it wherever both can compute a value.
"""

import io
import json
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from moshi.models.lm import LMGen, LMModel
from safetensors.torch import load_file, save_file

import make_mimi
import moshi_reference as reference

HERE = Path(__file__).parent
DELAYS = [0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1]
SHARED = dict(
    n_q=16, dep_q=8, hidden_scale=4.125, causal=True, layer_scale=None, gating="silu",
    norm="rms_norm_f32", positional_embedding="rope", depformer_layer_scale=None,
    depformer_multi_linear=True, depformer_max_period=10000, depformer_gating="silu",
    depformer_pos_emb="none", depformer_weights_per_step=True, delays=DELAYS,
    existing_text_padding_id=3,
)  # fmt: skip

# a: as first released, one float32 file with fused attention weights. b: as newer code saves it,
# bfloat16 in shards with tensors of other parts between them; its cache is full after 9 frames.
SPECS = {
    "moshi-a": dict(
        seed=11, dtype=torch.float32, shards=1, frames=60,
        codec=dict(
            seed=21, sample_rate=24000, frame_rate=12.5, codebooks=8, clips=[(make_mimi.JFK, 0, 9600)],
            seanet=dict(make_mimi.SEANET, dimension=16, n_filters=2, ratios=[8, 6, 5, 4]),
            transformer=dict(make_mimi.TRANSFORMER, d_model=16, num_heads=2, num_layers=1,
                             dim_feedforward=24, context=30, input_dimension=16,
                             output_dimensions=[16]),
            quantizer=dict(dimension=6, n_q=9, bins=20, input_dimension=16, output_dimension=16),
        ),
        config=dict(
            SHARED, dim=30, text_card=48, card=20, num_heads=3, num_layers=2, context=24,
            max_period=10000, depformer_dim=16, depformer_num_heads=2, depformer_num_layers=2,
            depformer_dim_feedforward=40, depformer_context=8, mimi_config_name="mimi.json",
        ),
    ),
    "moshi-b": dict(
        seed=13, dtype=torch.bfloat16, shards=3, frames=24,
        codec=dict(
            seed=22, sample_rate=24000, frame_rate=400, codebooks=8, clips=[(make_mimi.JFK, 4000, 6000)],
            seanet=dict(make_mimi.SEANET, dimension=12, n_filters=2, ratios=[5, 4]),
            transformer=dict(make_mimi.TRANSFORMER, d_model=12, num_heads=2, num_layers=1,
                             dim_feedforward=20, context=250, input_dimension=12,
                             output_dimensions=[12]),
            quantizer=dict(dimension=6, n_q=8, bins=24, input_dimension=12, output_dimension=12),
        ),
        config=dict(
            SHARED, dim=40, text_card=56, card=24, num_heads=2, num_layers=3, context=9,
            max_period=100000, depformer_dim=16, depformer_num_heads=1, depformer_num_layers=1,
            depformer_dim_feedforward=64, depformer_context=8, model_type="moshi",
            tokenizer_name="pieces.model", mimi_name="codec.safetensors",
            mimi_config_name="mimi.json",
            lm_gen_config=dict(temp=0.8, temp_text=0.7, top_k=250, top_k_text=25),
        ),
    ),
}  # fmt: skip
DECOYS = {
    "condition_provider.conditioners.description.embed.weight": (5, 8),
    "extra_heads.0.weight": (6, 40),
    "transformer.layers.3.norm1.alpha": (1, 1, 40),
}
NOT_OURS = (
    "model_type", "lm_gen_config", "moshi_name", "mimi_name", "mimi_config_name", "tokenizer_name"
)  # fmt: skip


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def make_weights(spec, model):
    """Random weights by name, wide enough that attention and the output are far from flat."""
    rng = np.random.default_rng(spec["seed"])
    out = {}
    for name, t in sorted(model.state_dict().items()):
        shape = tuple(t.shape)
        if name.endswith("alpha"):
            v = rng.uniform(0.5, 1.5, shape)
        elif "emb" in name:
            v = rng.normal(0, 0.4, shape)
        else:
            gain = 1.2 if "in_projs" in name else 1.5 if "linears" in name else 1.0
            gain = 1.5 if "text_linear" in name else gain
            v = rng.normal(0, gain / shape[1] ** 0.5, shape)
        out[name] = torch.tensor(v, dtype=torch.float32).to(spec["dtype"])
    return out


def fuse(weights):
    """The names of the first release: a layer's weight sets of the attention in one tensor."""
    out, parts = {}, {}
    for name, t in weights.items():
        if ".in_projs." in name or ".out_projs." in name:
            head, _, tail = name.partition("_projs.")
            fused = head + ("_proj_weight" if head.endswith("in") else "_proj.weight")
            parts.setdefault(fused, {})[int(tail.split(".")[0])] = t
        else:
            out[name] = t
    for name, sets in parts.items():
        out[name] = torch.cat([sets[k] for k in sorted(sets)])
    return dict(sorted(out.items()))


def write_weights(spec, weights, folder):
    count = spec["shards"]
    if count == 1:
        save_file(fuse(weights), folder / "model.safetensors")
        return
    shard = {n: i * count // len(weights) for i, n in enumerate(weights)}
    weights = dict(weights)
    for i, (name, shape) in enumerate(DECOYS.items()):
        weights[name] = torch.full(shape, 77.0, dtype=spec["dtype"])
        shard[name] = i % count
    files = {n: f"model-{s + 1:05}-of-{count:05}.safetensors" for n, s in shard.items()}
    for file in sorted(set(files.values())):
        save_file({n: t for n, t in weights.items() if files[n] == file}, folder / file)
    write_json(folder / "model.safetensors.index.json", {
        "metadata": {"total_size": sum(t.nbytes for t in weights.values())},
        "weight_map": dict(sorted(files.items())),
    })  # fmt: skip


TEXT = """and so, my fellow americans, ask not what your country can do for you
ask what you can do for your country. my fellow citizens of the world
ask not what america will do for you, but what together we can do for the freedom of man
the same high standards of strength and sacrifice which we ask of you"""


def make_tokenizer(spec, path):
    """A SentencePiece model with the released one's special ids; what each id reads as."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.split("\n") * 20), model_writer=model,
        vocab_size=spec["config"]["text_card"] - 4, unk_id=0, bos_id=1, eos_id=2, pad_id=3,
        normalization_rule_name="identity", minloglevel=2,
    )  # fmt: skip
    path.write_bytes(model.getvalue())
    sp = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
    silent = [i for i in range(len(sp)) if sp.is_control(i) or sp.is_unknown(i)]
    assert silent == [0, 1, 2, 3]
    return [sp.id_to_piece(i).replace("\u2581", " ") for i in range(len(sp))]


class Checkpoint:
    """What was written, read back: the authors' model in float32 and our weights in float64."""

    def __init__(self, folder):
        self.cfg = json.loads((folder / "config.json").read_text())
        state = {}
        for file in sorted(folder.glob("model*.safetensors")):
            state.update(load_file(file))
        state = {n: t.float() for n, t in state.items() if n not in DECOYS}
        kwargs = {k: v for k, v in self.cfg.items() if k not in NOT_OURS}
        self.model = LMModel(**kwargs).eval()
        self.model.load_state_dict(dict(state))
        self.w = {n: t.double() for n, t in state.items()}

    def teacher(self, frames):
        """Log-probs of every step, and that the package's own undelayed ones are among them."""
        m = self.model
        codes = torch.tensor(frames).T[None]
        columns = torch.tensor(
            [reference.column(self.cfg, frames, t) for t in range(len(frames) + 1)]
        ).T[None]
        h, text = m.forward_text(columns[:, :, :-1])
        made = m.forward_depformer_training(columns[:, :, 1:], h)
        out = m(codes)
        for k, d in enumerate(m.delays[1 : 1 + m.dep_q]):
            n = len(frames) - d
            assert torch.equal(out.logits[0, k, :n], made[0, k, d:])
        assert torch.equal(out.text_logits[0, 0], text[0, 0])
        return text[0, 0].log_softmax(-1), made[0].transpose(0, 1).log_softmax(-1)


def make_frames(rng, cfg, n, absent=0.0):
    """Random frames; a share of the codes is absent (-1)."""
    text = rng.integers(0, cfg["text_card"], (n, 1))
    codes = rng.integers(0, cfg["card"], (n, cfg["n_q"]))
    frames = np.concatenate([text, codes], axis=1)
    frames[rng.random(frames.shape) < absent] = -1
    return frames.tolist()


class Narrow(Exception):
    """A draw whose best two are too close to call."""


def least_gap(lm, run):
    """Runs with every draw watched; the least distance between its best two log-probs."""
    gaps = []
    text, made = lm.forward_text, lm.forward_depformer

    def watch(logits):
        best = logits.float().log_softmax(-1).flatten().topk(2).values
        gaps.append((best[0] - best[1]).item())

    def forward_text(*args, **kw):
        h, logits = text(*args, **kw)
        watch(logits)
        return h, logits

    def forward_depformer(*args, **kw):
        logits = made(*args, **kw)
        watch(logits)
        return logits

    lm.forward_text, lm.forward_depformer = forward_text, forward_depformer
    out = run()
    lm.forward_text, lm.forward_depformer = text, made
    return out, min(gaps)


def call(lm, codec, pcm):
    """What LMGen returns for a clip, greedily, step by step; and the sound of it."""
    gen = LMGen(lm, use_sampling=False, temp=0.0, temp_text=0.0)
    steps, sound = [], []
    size = codec.frame_size
    with gen.streaming(1), codec.streaming(1):
        for x in pcm.split(size):
            codes = codec.encode(torch.nn.functional.pad(x, (0, size - len(x)))[None, None])
            out = gen.step(codes)
            if out is not None:
                steps.append(out[0, :, 0].tolist())
                sound.append(codec.decode(out[:, 1:])[0, 0])
    return steps, torch.cat(sound)


def error(a, b):
    return max((x - y).abs().max().item() for x, y in zip(a, b))


def make(name, spec):
    torch.manual_seed(spec["seed"])
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*"):
        old.unlink()
    kwargs = {k: v for k, v in spec["config"].items() if k not in NOT_OURS}
    write_weights(spec, make_weights(spec, LMModel(**kwargs)), folder)
    write_json(folder / "config.json", spec["config"])
    name_of = spec["config"].get("tokenizer_name", "tokenizer_spm_32k_3.model")
    pieces = make_tokenizer(spec, folder / name_of)
    ck = Checkpoint(folder)
    rng = np.random.default_rng(spec["seed"] + 100)
    context, cases, expected = ck.cfg["context"], [], {}

    def keep(case, text, codes, at):
        # One tensor: a step's text row and its code rows behind each other.
        flat = torch.cat([text[at], codes[at].flatten(1)], dim=1).float()
        case.update(at=at, tensor=case["name"])
        expected[case["name"]] = flat.contiguous()
        cases.append(case)

    for label, n, absent in ("short", 3, 0.0), ("absent", 12, 0.3), ("long", 3 * context, 0.0):
        frames = make_frames(rng, ck.cfg, n, absent)
        at = list(range(n)) if n < 20 else [0, context - 1, context, context + 1, n - 1]
        text, codes = ck.teacher(frames)
        other = reference.teacher(ck.w, ck.cfg, frames)
        f32 = error((text, codes), other)
        assert f32 < 5e-5, (name, label, f32)
        keep(dict(name=label, kind="codes", frames=frames, f32_error=f32), text, codes, at)
    for rope in "cache", "absolute":
        window, sinks, n = context * 2 // 3, 2, context + 7
        frames = make_frames(rng, ck.cfg, n)
        text, codes = reference.teacher(ck.w, ck.cfg, frames, window=window, sinks=sinks, rope=rope)
        kv = dict(window=window, sinks=sinks, rope=rope)
        keep(dict(name="window-" + rope, kind="codes", frames=frames, kv=kv), text, codes,
             [0, window, window + sinks, n - 1])  # fmt: skip
    codec = spec["codec"]
    mimi, config, state = make_mimi.random_kyutai(codec)
    save_file(state, folder / spec["config"].get("mimi_name", make_mimi.RELEASED_NAME))
    write_json(folder / "mimi.json", config)
    file, first, _ = codec["clips"][0]
    n = spec["frames"] * mimi.frame_size - mimi.frame_size // 3
    pcm = make_mimi.clip((file, first, n))
    (steps, sound), gap = least_gap(ck.model, lambda: call(ck.model, mimi, pcm))
    if gap < 1e-3:
        raise Narrow(f"{name}: a draw is decided by {gap:.1e}: take another seed")
    at = [0, 1, len(steps) // 2, len(steps) - 1]
    expected["call"] = sound.view(len(steps), -1)[at].contiguous()
    cases.append(dict(name="call", kind="call", file=file, first=first, samples=n, steps=steps,
                      tensor="call", at=at, least_gap=gap))  # fmt: skip
    cases.append(dict(name="pieces", kind="pieces", pieces=pieces))
    lines = ",\n".join(json.dumps(c) for c in cases)
    (folder / "cases.json").write_text("[\n" + lines + "\n]\n")
    save_file(expected, folder / "expected.safetensors")
    print(name, {c["name"]: c.get("f32_error") for c in cases})


if __name__ == "__main__":
    with torch.no_grad():
        for name, spec in SPECS.items():
            make(name, spec)
