#!/usr/bin/env python3
"""The clips of the suite's tests of sense: clips.py MODEL BANK FOLDER

One frame each, in held-out voices, as FLAC in FOLDER: 16 of words and of 1 to 4 digits by turns,
none of them twice, 4 of other speech, "repeat" and "first", noise, and nothing; answers.json has what is to be answered. A clip
that MODEL gets wrong, or only just right, alone or in the calls of the tests, makes room for
another one: the suite asks whether the engine still hears what the model can hear. How often the
model is wrong, evaluate.py says.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import soundfile
import torch

import batches
from evaluate import answers
from export import load
from sound import FRAME, RATE
from task import COMMAND, COMMANDS, DIGIT, LISTEN, OTHER, UNKNOWN, WORD, Chat, make_tokenizer

SEED = 11
NAMED, OTHERS = 16, 4
AHEAD = 1.0  # by how much the likeliest token must be, so that other kernels find the same one
WINDOW = 128, 4


class Maker:
    def __init__(self, model, bank):
        self.thinker, self.chat = load(model), Chat(make_tokenizer())
        self.bank = batches.Bank(bank, held=True, say=lambda _: None)
        self.r = np.random.default_rng(SEED)
        self.left = 0

    def sound(self, *key):
        """One frame with an utterance of that key, and what is to be answered."""
        r, bank = self.r, self.bank
        x = r.normal(0, 2e-4, FRAME)
        i = bank.pick(r, bank.speaker(r), *key)
        pcm = np.asarray(bank.sounds[i])[:FRAME] / 32768
        at = r.integers(0, FRAME + 1 - len(pcm))
        x[at : at + len(pcm)] += 0.4 * pcm
        label = UNKNOWN if key[0] == COMMAND else bank.rows[i]["label"]
        return np.round(x.clip(-1, 1) * 32767).astype(np.int16), label

    def noise(self):
        x = self.r.normal(0, 10 ** self.r.uniform(-3.5, -2), FRAME)
        return np.round(x * 32767).astype(np.int16), LISTEN

    def wrong(self, call, window=WINDOW):
        """Which frames of a call [(samples, label)] are answered wrong, or only just right."""
        pcm = np.concatenate([x for x, _ in call]).astype(np.float32) / 32768
        got = answers(self.thinker, self.chat, pcm, *window)
        return [
            i for i, ((_, want), (text, ahead)) in enumerate(zip(call, got))
            if text != want or ahead < AHEAD
        ]  # fmt: skip

    def good(self, make, *key):
        while True:
            clip = make(*key)
            if not self.wrong([clip], (None, 0)):
                return clip
            self.left += 1

    def named(self, i, some):
        """The one in place i: no two have the same answer, and strings of all lengths are there."""
        taken = [label for j, (_, label) in enumerate(some) if j != i]
        while True:
            clip = self.good(self.sound, DIGIT if i % 2 else WORD)
            if clip[1] not in taken and (i % 2 == 0 or len(clip[1]) == 1 + i // 2 % 4):
                return clip

    def clips(self):
        quiet, some = (np.zeros(FRAME, np.int16), LISTEN), []
        for i in range(NAMED):
            some.append(self.named(i, some))
        some += [self.good(self.sound, OTHER) for _ in range(OTHERS)]
        # The calls of sense.bats: all from each on, and the named ones with silence between them.
        todo = True
        while todo:
            todo = set()
            for i in range(len(some)):
                call = some[i:] + [quiet] + some[:i]
                order = [*range(i, len(some)), None, *range(i)]
                todo |= {order[w] for w in self.wrong(call)}
            call = [clip for c in some[:NAMED] for clip in (c, quiet)]
            todo |= {w // 2 for w in self.wrong(call)}
            assert None not in todo, "silence is answered"
            for i in todo:
                some[i] = self.named(i, some) if i < NAMED else self.good(self.sound, OTHER)
            self.left += len(todo)
            print(f"{len(todo)} made anew", flush=True)
        out = {f"{i:02}": clip for i, clip in enumerate(some[:NAMED])}
        out |= {f"other-{i}": clip for i, clip in enumerate(some[NAMED:])}
        out |= {name: self.good(self.sound, COMMAND, name) for name in COMMANDS}
        return out | dict(noise=self.good(self.noise), quiet=quiet)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("model", type=Path)
    p.add_argument("bank", type=Path)
    p.add_argument("folder", type=Path)
    args = p.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    maker = Maker(args.model, args.bank)
    args.folder.mkdir(parents=True, exist_ok=True)
    clips = maker.clips()
    for name, (pcm, _) in clips.items():
        soundfile.write(args.folder / f"{name}.flac", pcm, RATE)
    book = {name: "" if label == LISTEN else label for name, (_, label) in clips.items()}
    (args.folder / "answers.json").write_text(json.dumps(book, indent=1) + "\n")
    print(f"{len(book)} clips, {maker.left} left out")


if __name__ == "__main__":
    sys.exit(main())
