"""Make the tiny random codecs mimi-a, mimi-b and mimi-c, and what their authors' code computes.

    python make_mimi.py          (needs requirements.txt; ten seconds on one core)

a and b: the moshi package, live (MimiModel.streaming) and whole clips. c: Hugging Face
transformers, whole clips shorter than its layers' context. Everything is seeded. Codes that float32 and
float64 do not agree on would be luck: a seed that gives such is refused here.
"""

import contextlib
import os

os.environ["NO_TORCH_COMPILE"] = "1"

import numpy as np
import soundfile
import torch
from moshi.models import loaders
from safetensors.torch import save_file
from transformers import MimiConfig, MimiModel

from common import HERE, JFK, NIGHT, write_json, write_lines

RELEASED_NAME = "tokenizer-e351c8d8-checkpoint125.safetensors"

SEANET = dict(
    channels=1, causal=True, activation="ELU", compress=2, dilation_base=2,
    disable_norm_outer_blocks=0, kernel_size=7, residual_kernel_size=3, last_kernel_size=3,
    norm="none", pad_mode="constant", true_skip=True, n_residual_layers=1,
)  # fmt: skip
TRANSFORMER = dict(
    causal=True, layer_scale=0.01, context=250, conv_layout=True, max_period=10000, gating="none",
    norm="layer_norm", positional_embedding="rope",
)  # fmt: skip

# a: the released rates, 3 heads, a context of 24 steps, all that only a config can tell.
# b: no config, so 8 heads and 250 steps; another chain and other widths, which the tensors tell.
SPECS = {
    "mimi-a": dict(
        seed=11, sample_rate=24000, frame_rate=12.5, codebooks=6, config=True,
        seanet=dict(SEANET, dimension=24, n_filters=3, compress=1, ratios=[8, 6, 5, 4]),
        transformer=dict(TRANSFORMER, d_model=24, num_heads=3, num_layers=2, dim_feedforward=36,
                         context=24, max_period=500, input_dimension=24, output_dimensions=[24]),
        quantizer=dict(dimension=10, n_q=7, bins=40, input_dimension=24, output_dimension=24),
        clips=[(JFK, 0, 48 * 1920 + 700), (NIGHT, 100000, 1)],
    ),
    "mimi-b": dict(
        seed=12, sample_rate=24000, frame_rate=400, codebooks=8, config=False,
        seanet=dict(SEANET, dimension=20, n_filters=4, ratios=[5, 4], n_residual_layers=2,
                    kernel_size=5),
        transformer=dict(TRANSFORMER, d_model=32, num_heads=8, num_layers=1, dim_feedforward=40,
                         input_dimension=20, output_dimensions=[20]),
        quantizer=dict(dimension=8, n_q=12, bins=24, input_dimension=20, output_dimension=20),
        clips=[(JFK, 4000, 150 * 60), (NIGHT, 0, 61)],
    ),
}  # fmt: skip


def clip(spec):
    file, first, n = spec
    pcm, _ = soundfile.read(HERE / "mimi-a" / file, dtype="float32")
    return torch.tensor(pcm[first : first + n])


def fill(model, seed, x):
    """Weights wide enough that the transformers matter and codes vary."""
    rng = np.random.default_rng(seed)
    for name, p in list(model.named_parameters()) + list(model.named_buffers()):
        shape = tuple(p.shape)
        if not p.is_floating_point() or "inv_freq" in name:
            continue
        if "initialized" in name:
            v = np.ones(shape)
        elif "cluster_usage" in name:
            v = rng.uniform(0.2, 3, shape)
            v[0] = 1e-7  # less than what is taken as none
        elif "embed" in name:
            continue
        elif "norm" in name and name.endswith("weight"):
            v = rng.uniform(0.5, 1.5, shape)
        elif name.endswith("bias"):
            v = rng.normal(0, 0.2, shape)
        elif "scale" in name:
            v = rng.uniform(0.2, 0.6, shape)
        else:
            fan = np.prod(shape[1:])
            if "convtr" in name or ("decoder.layers" in name and "block" not in name):
                fan = shape[0] * 2 if len(shape) > 1 and shape[1] > 1 else 2
            gain = 0.9 if name.startswith("decoder.") else 1.1
            v = rng.normal(0, gain / fan**0.5, shape)
        p.data.copy_(torch.tensor(v, dtype=p.dtype))
    return rng


def fill_codebooks(codebooks, vectors, rng, sums, clear):
    """Codebooks about what is really there: residual by residual, with noise of its own width."""
    rest = vectors.double().numpy()
    for book in codebooks:
        usage = book.cluster_usage.double().numpy()
        bins = len(usage)
        pick = rest[rng.integers(0, len(rest), bins)]
        e = pick + rng.normal(0, 0.3, pick.shape) * rest.std()
        total = e * np.maximum(usage, 1e-5)[:, None]
        getattr(book, sums).data.copy_(torch.tensor(total, dtype=torch.float32))
        clear(book)
        near = ((rest[:, None] - e[None]) ** 2).sum(-1).argmin(1)
        rest = rest - e[near]


def level(last, out):
    """The last convolution such that sound is about as loud as sound."""
    for p in (last.weight, last.bias):
        p.data /= 2 * out.abs().max()


def frames_of(pcm, size):
    n = -(-len(pcm) // size)
    return torch.nn.functional.pad(pcm, (0, n * size - len(pcm))).view(1, 1, -1), n


# ---------------------------------------------------------------------------------------------
# kyutai


def run_kyutai(model, pcm, live):
    """Codes [n_q, frames] of a clip and the sound of these codes, frame by frame or at once."""
    x, n = frames_of(pcm, model.frame_size)
    x = x.to(next(model.parameters()).dtype)
    step = model.frame_size if live else x.shape[-1]
    with torch.no_grad():
        with model.streaming(1) if live else contextlib.nullcontext():
            codes = torch.cat([model.encode(p) for p in x.split(step, -1)], -1)
        with model.streaming(1) if live else contextlib.nullcontext():
            parts = codes.split(1 if live else n, -1)
            out = torch.cat([model.decode(c) for c in parts], -1)
    return codes[0], out[0, 0]


def clear_kyutai(book):
    book._embedding = None


def release(state):
    """The package splits the fused attention weights since; the released file has them in one."""
    out = {}
    for name, t in state.items():
        name = name.replace("in_projs.0.weight", "in_proj_weight")
        out[name.replace("out_projs.0.weight", "out_proj.weight")] = t.contiguous()
    return out


def random_kyutai(spec):
    """A random codec by spec: the model, its config, and its tensors as released."""
    config = dict(sample_rate=spec["sample_rate"], channels=1, frame_rate=spec["frame_rate"],
                  seanet=spec["seanet"], transformer=spec["transformer"],
                  quantizer=spec["quantizer"])  # fmt: skip
    torch.manual_seed(spec["seed"])
    model = loaders.get_mimi(None, config, num_codebooks=spec["codebooks"])
    x, _ = frames_of(clip(spec["clips"][0]), model.frame_size)
    rng = fill(model, spec["seed"], x)
    with torch.no_grad():
        latent = model._encode_to_unquantized_latent(x)
        for group in (model.quantizer.rvq_first, model.quantizer.rvq_rest):
            books = [layer._codebook for layer in group.vq.layers]
            vectors = group.input_proj(latent)[0].T
            fill_codebooks(books, vectors, rng, "embedding_sum", clear_kyutai)
    level(model.decoder.model[-1].conv.conv, run_kyutai(model, clip(spec["clips"][0]), True)[1])
    return model, config, release(model.state_dict())


def make_kyutai(name, spec):
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    model, config, state = random_kyutai(spec)
    if spec["config"]:
        save_file(state, folder / "mimi.safetensors")
        write_json(folder / "mimi.json", config)
        write_json(folder / "config.json", dict(
            dim=64, card=spec["quantizer"]["bins"], n_q=2 * spec["codebooks"],
            dep_q=spec["codebooks"], model_type="moshi", moshi_name="moshi.safetensors",
            mimi_name="mimi.safetensors", mimi_config_name="mimi.json",
        ))  # fmt: skip
    else:
        save_file(state, folder / RELEASED_NAME)
    double = loaders.get_mimi(None, config, num_codebooks=spec["codebooks"]).double()
    double.load_state_dict({n: t.double() for n, t in state.items()})
    cases, tensors = [], {}
    for i, c in enumerate(spec["clips"]):
        for live in (True, False):
            codes, out = run_kyutai(model, clip(c), live)
            codes64, out64 = run_kyutai(double, clip(c), live)
            assert (codes == codes64).all(), f"{name}: a code that hangs on rounding"
            case = f"clip{i}-{'live' if live else 'whole'}"
            add_case(cases, tensors, case, c, codes, out, model.frame_size, live, out64)
    live, whole = cases[0]["codes"], cases[1]["codes"]
    differ = sum(a != b for f, g in zip(live, whole) for a, b in zip(f, g))
    apart = (tensors["clip0-live"] - tensors["clip0-whole"]).abs().max()
    print(f"{name}: {differ} codes of {len(live) * len(live[0])} differ between live and whole,",
          f"sound by {apart:.1e}; float32 is off by {max(c['f32_error'] for c in cases):.1e} at a",
          f"level of {max(c['level'] for c in cases):.2f}")  # fmt: skip
    assert apart > 1e-4
    write_lines(folder / "cases.json", cases)
    save_file(tensors, folder / "expected.safetensors")


def add_case(cases, tensors, name, c, codes, out, size, live, out64):
    """A few frames of sound: from the beginning, and to the end."""
    n = codes.shape[1]
    at = sorted({f for f in (0, 1, 2, 13, n // 2, n - 2, n - 1) if 0 <= f < n})
    at = at if size > 200 else list(range(n))
    tensors[name] = torch.stack([out[f * size : (f + 1) * size] for f in at]).contiguous()
    cases.append(dict(
        name=name, kind="live" if live else "whole", file=c[0], first=c[1], samples=c[2],
        frame_samples=size, frames=at, tensor=name, f32_error=(out - out64).abs().max().item(),
        level=out.abs().max().item(), codes=codes.T.tolist(),
    ))  # fmt: skip


# ---------------------------------------------------------------------------------------------
# transformers


def run_hf(model, pcm):
    x, _ = frames_of(pcm, 1920)
    x = x.to(next(model.parameters()).dtype)
    with torch.no_grad():
        codes = model.encode(x).audio_codes
        return codes[0], model.decode(codes).audio_values[0, 0]


def make_hf(name, seed):
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    config = MimiConfig(
        num_filters=2, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, head_dim=8, intermediate_size=30, codebook_size=32, codebook_dim=12,
        vector_quantization_hidden_dimension=12, num_quantizers=5, upsample_groups=24,
        rope_theta=2000.0,
    )  # fmt: skip
    model = MimiModel(config).eval()
    pcm = clip((JFK, 0, 20 * 1920))
    rng = fill(model, seed, pcm)
    with torch.no_grad():
        x = model.encoder(pcm.view(1, 1, -1))
        x = model.encoder_transformer(x.transpose(1, 2))[0].transpose(1, 2)
        latent = model.downsample(x)
        q = model.quantizer
        for group in (q.semantic_residual_vector_quantizer, q.acoustic_residual_vector_quantizer):
            books = [layer.codebook for layer in group.layers]
            vectors = group.input_proj(latent)[0].T
            fill_codebooks(books, vectors, rng, "embed_sum", clear_kyutai)
    level(model.decoder.layers[-1].conv, run_hf(model, pcm)[1])
    config.save_pretrained(folder)
    state = {n: t.contiguous() for n, t in model.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    double = MimiModel(config).eval().double()
    double.load_state_dict({n: t.double() for n, t in state.items()})
    cases, tensors = [], {}
    c = (JFK, 8000, 20 * 1920)
    codes, out = run_hf(model, clip(c))
    codes64, out64 = run_hf(double, clip(c))
    assert (codes == codes64).all(), f"{name}: a code that hangs on rounding"
    add_case(cases, tensors, "clip0-whole", c, codes, out, 1920, False, out64)
    print(f"{name}: float32 is off by {cases[0]['f32_error']:.1e}")
    write_lines(folder / "cases.json", cases)
    save_file(tensors, folder / "expected.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, spec in SPECS.items():
        make_kyutai(name, spec)
    make_hf("mimi-c", 13)
