"""What the families' scripts share: tokenizers, files, clips of the test speech, case lists."""

import json
import os
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import soundfile
import torch
from safetensors.torch import save_file
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import Qwen2TokenizerFast

HERE = Path(__file__).parent
RATE = 16000
JFK, NIGHT = "../../data/jfk.flac", "../../data/night30.flac"

# ---------------------------------------------------------------------------------------------
# Tokenizer

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = [
    "system\nYou are a helpful assistant.\nuser\nassistant\n",
    "And so, my fellow Americans, ask not what your country can do for you.",
    "Ask what you can do for your country. You know I won't open this door again. I mean it.",
    "He said they're here, we've met, it's theirs, I'll go, she'd stay, I'm fine, don't.",
    "Caf\u00e9 d\u00e9j\u00e0 vu, na\u00efve r\u00e9sum\u00e9; \u4f60\u597d\u4f60\u597d",
    "    four spaces\n\n\ttabs\t\tand   more  \r\n\r\n... --- !!! ??? 2024 1961",
]
TEXTS = [
    "", " ", "a", "Hello, world!", "And so, my fellow Americans, ask not what your country can do.",
    "I'm sure they've said we'd it's don't you're I'LL HE'S o'clock 'tis rock'n'roll",
    "'S 'T 'RE 'VE 'M 'LL 'D's'x'", "don\u2019t won\u2019t", "'\u017f '\u017fo",
    "0123456789", "3.14159 1,000,000 1e-10 v2.0", "\u0663\u0664\u0665 \u00bd \u2167 \u2460 \u00b2",
    "a1b22c333", "  two leading", "trailing two  ", "a   b    c", "\ta\t\tb \t c", "\n\n\nx\n",
    "line\r\nline\r\n\r\nend\r", " \n \n  x", "x  \n  y", "...\n\n...\r\n!",
    "a\u00a0b\u00a0\u00a0c",
    "\u3000wide\u3000\u3000space", "a\u2028b\u0085c\u000bd\u000ce\u200bf\ufefff", "\x01\x1f\x7f",
    "Caf\u00e9 d\u00e9j\u00e0 vu", "Cafe\u0301 A\u030angstro\u0308m n\u0303",
    "\u1112\u1161\u11ab\u1100\u1173\u11af \ud55c\uae00",
    "\u212b \u2126 \ufb01 \u0344 q\u0307\u0323",
    "\u4f60\u597d\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u03ba\u03cc\u03c3\u03bc\u03b5 "
    "\u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f600\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466!",
    "\U0001d4d0\U0001d7d8\U0001d7d9 \U00010400", "<|im_start|>user\nHi<|im_end|>\n",
    "x<|audio_bos|><|AUDIO|><|AUDIO|><|audio_eos|>y", "<|im_start|<|im_start|>|> <|unknown|> <|",
    "e<|im_end|>\u0301 <|im_end|>  <|im_end|>", "<tool_call>\n{\"a\": [1, 2]}\n</tool_call>",
    "int main(void) { return x->y != 0 ? a[i]++ : ~b; } /* #1 @me */", "____--==**//\\\\",
    "supercalifragilisticexpialidocious antidisestablishmentarianism country countryside",
]  # fmt: skip


def byte_bpe(model):
    """Dress a BPE model the way the library builds a Qwen2 tokenizer."""
    tok = Tokenizer(model)
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return tok


def added_tokens(specials):
    """The special ones, then two that are only added."""
    tokens = [AddedToken(s, special=True, normalized=False) for s in specials]
    more = ("<tool_call>", "</tool_call>")
    return tokens + [AddedToken(s, special=False, normalized=False) for s in more]


def make_tokenizer(spec, folder, specials):
    """Train and write the tokenizer; the table has a few more rows than the tokenizer has ids."""
    more = added_tokens(specials)
    tok = byte_bpe(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=spec["vocab"] - len(more) - 8,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tok.train_from_iterator(CORPUS[spec["seed"] % 2 :] * 20, trainer)
    tok.add_tokens(more)
    tok.add_special_tokens(more[: len(specials)])
    if spec["tokenizer"] == "tokenizer.json":
        tok.save(str(folder / "tokenizer.json"))
        if spec.get("old_merges"):
            path = folder / "tokenizer.json"
            doc = json.loads(path.read_text())
            doc["model"]["merges"] = [" ".join(m) for m in doc["model"]["merges"]]
            path.write_text(json.dumps(doc, ensure_ascii=False, indent=1) + "\n")
        tok = Tokenizer.from_file(str(folder / "tokenizer.json"))
    else:
        tok.model.save(str(folder))
    added = {
        str(tok.token_to_id(a.content)): dict(
            content=a.content, lstrip=False, normalized=False, rstrip=False, single_word=False,
            special=a.special,
        )
        for a in more
    }  # fmt: skip
    write_json(folder / "tokenizer_config.json", {
        "add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added,
        "additional_special_tokens": specials[1:], "bos_token": None,
        "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace",
        "model_max_length": 32768, "pad_token": "<|endoftext|>", "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
    })  # fmt: skip
    if spec["tokenizer"] != "tokenizer.json":
        read = Qwen2TokenizerFast.from_pretrained(folder).backend_tokenizer
        for text in TEXTS:
            assert read.encode(text).ids == tok.encode(text).ids, text
        tok = read
    return tok


# ---------------------------------------------------------------------------------------------
# Files


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def write_lines(path, items):
    """A list with one item a line, in ASCII, so that no editor can normalise the strings."""
    path.write_text("[\n" + ",\n".join(json.dumps(c) for c in items) + "\n]\n")


FLOATS = ("token2wav.", "code2wav.")  # decoys that are float32 in every release


def write_weights(spec, weights, folder, decoys=None):
    """One file, or shards cut in order with the decoys dealt out among them, and their index."""
    count = spec["shards"]
    names = list(weights)
    shard = {n: i * count // len(names) for i, n in enumerate(names)}
    weights = dict(weights)
    for i, (name, shape) in enumerate((decoys or {}).items()):
        kind = torch.float32 if name.startswith(FLOATS) else spec["dtype"]
        weights[name] = torch.full(shape, 77.0, dtype=kind)
        shard[name] = i % count
    if count == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    files = {n: f"model-{s + 1:05}-of-{count:05}.safetensors" for n, s in shard.items()}
    for file in sorted(set(files.values())):
        part = {n: t for n, t in weights.items() if files[n] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    write_json(folder / "model.safetensors.index.json", {
        "metadata": {"total_size": sum(t.nbytes for t in weights.values())},
        "weight_map": dict(sorted(files.items())),
    })  # fmt: skip


# ---------------------------------------------------------------------------------------------
# Cases


def clip(file, first, samples):
    """A piece of a file, by samples; the seconds are exact decimals of the same numbers."""
    return dict(
        file=file, start=first / RATE, len=samples / RATE, first=first, samples=samples
    )  # fmt: skip


def samples_of(c):
    data, rate = soundfile.read(HERE / c["file"].removeprefix("../"), dtype="float32")
    assert rate == RATE and data.ndim == 1 and c["first"] + c["samples"] <= len(data)
    return data[c["first"] : c["first"] + c["samples"]]


def near(values, n):
    return sorted({v for v in values if 0 <= v < n})


class Book:
    """Collects cases and their tensors."""

    def __init__(self):
        self.cases, self.tensors = [], {}

    def add(self, name, tensor, key="tensor", **fields):
        assert torch.isfinite(tensor).all(), name
        self.tensors[name] = tensor.to(torch.float32).contiguous()
        self.cases.append(dict(name=name, **fields, **{key: name}))

    def write(self, folder):
        save_file(self.tensors, folder / "expected.safetensors")
        write_lines(folder / "cases.json", self.cases)


