#!/usr/bin/env python3
"""Makes the calls of the evaluation: calls.py [--seed N] BANK FOLDER

Whole frames of 2 s, 16 bits at 16 kHz, one WAV file a call, and FOLDER/calls.json: for each the set
it belongs to and what each frame holds. All voices are held out. Noise is added to the samples
here, and in training to spectra: the two share no code.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import soundfile

import batches
from sound import FRAME, RATE, resampled
from task import COMMAND, DIGIT, OTHER, SILENCE, UNKNOWN, WORD

NEEDLE = [0, 1, 2, 4, 8, 16]  # silent frames between a word and "repeat"
ASTERISK = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
ROOT = Path(__file__).resolve().parents[2]


def colour(r, n, tilt):
    """Noise of variance 1 whose amplitude goes with the frequency to the power `tilt`."""
    s = np.fft.rfft(r.standard_normal(n))
    x = np.fft.irfft(s * (np.arange(len(s)) * RATE / n + 20) ** tilt, n)
    return x / x.std()


class Maker:
    def __init__(self, bank, folder, seed):
        self.bank, self.folder = bank, folder
        self.r = np.random.default_rng(seed)
        self.calls = []

    def add(self, name, turns, snr=(15, 40)):
        """turns: (kind, label, samples or None, voice); the sound lies anywhere in its frame."""
        r, level = self.r, 10 ** (self.r.uniform(-22, -3) / 20)
        x = np.zeros((len(turns), FRAME))
        for t, (_, _, sound, _) in enumerate(turns):
            if sound is not None:
                sound = sound[:FRAME] / np.abs(sound).max()
                at = r.integers(0, FRAME + 1 - len(sound))
                x[t, at : at + len(sound)] = sound * level
        noise = colour(r, x.size, r.uniform(-1, 0)) * level * 0.18 * 10 ** (-r.uniform(*snr) / 20)
        self.write(name, x.ravel() + noise, [(k, label, v) for k, label, _, v in turns])

    def write(self, name, pcm, frames):
        file = f"{name}-{sum(c['set'] == name for c in self.calls):03}.wav"
        pcm = np.round(pcm.clip(-1, 1) * 32767).astype(np.int16)
        soundfile.write(self.folder / file, pcm, RATE)
        keys = "kind", "label", "voice"
        frames = [dict(zip(keys, (int(k), label, voice))) for k, label, voice in frames]
        self.calls.append(dict(set=name, file=file, frames=frames))

    def said(self, kind, label=None, speaker=None):
        speaker = speaker or self.bank.speaker(self.r)
        key = (kind, label) if kind == COMMAND else (kind,)
        i = self.bank.pick(self.r, speaker, *key)
        row = self.bank.rows[i]
        return kind, row["label"], np.asarray(self.bank.sounds[i]) / 32768, row["voice"]

    def mixed(self, name, calls, frames):
        for _ in range(calls):
            turns = []
            for _ in range(frames):
                kind = self.r.choice(5, p=[0.36, 0.26, 0.08, 0.14, 0.16])
                if kind == SILENCE:
                    turns.append((SILENCE, "", None, ""))
                else:
                    label = self.r.choice(["repeat", "first"]) if kind == COMMAND else None
                    turns.append(self.said(int(kind), label))
            self.add(name, turns)

    def needle(self, calls):
        for k in NEEDLE:
            for _ in range(calls):
                who = self.bank.speaker(self.r)
                quiet = [(SILENCE, "", None, "")] * k
                turns = [self.said(WORD, None, who), *quiet, self.said(COMMAND, "repeat", who)]
                self.add(f"needle-{k}", turns, (20, 40))

    def silence(self, calls):
        r = self.r
        for _ in range(calls):
            x = [colour(r, FRAME, r.uniform(-1.2, 0.2)) * 10 ** (r.uniform(-75, -12) / 20)
                 for _ in range(5)] + [np.zeros(FRAME)]  # fmt: skip
            if r.random() < 0.5:
                x[2] += 0.1 * np.sin(2 * np.pi * r.uniform(50, 2500) * np.arange(FRAME) / RATE)
            order = r.permutation(6)
            self.write("silence", np.concatenate([x[i] for i in order]), [(SILENCE, "", "")] * 6)

    def human(self, calls):
        """A speaker of Asterisk's announcements, at 8 kHz. Single words, and digits joined."""
        r = self.r
        words, digits = asterisk()
        for _ in range(calls):
            turns = []
            for _ in range(6):
                if r.random() < 0.5:
                    word = sorted(words)[r.integers(len(words))]
                    turns.append((WORD, word, words[word], "Allison"))
                    continue
                text = "".join(map(str, r.integers(0, 10, r.choice([1, 2]))))
                parts = []
                for d in text:
                    parts += [digits[int(d)], np.zeros(r.integers(0, 900))]
                turns.append((DIGIT, text, np.concatenate(parts[:-1]), "Allison"))
            self.add("human", [t for t in turns if len(t[2]) <= FRAME], (20, 45))

    def talk(self):
        """Connected speech of people, the project's test clips: none of it is in the task."""
        for name in "jfk", "night30":
            pcm, rate = soundfile.read(ROOT / "tests" / "data" / f"{name}.flac")
            assert rate == RATE
            pcm = pcm[: len(pcm) // FRAME * FRAME]
            self.write("talk", pcm, [(OTHER, UNKNOWN, name)] * (len(pcm) // FRAME))


def asterisk():
    """What of the task the announcements say: {word: samples}, ten digits. Debian's
    asterisk-core-sounds-en-wav."""
    nato = (
        "alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike november "
        "oscar papa quebec romeo sierra tango uniform victor whiskey xray yankee zulu"
    ).split()
    days = "sunday monday tuesday wednesday thursday friday saturday".split()
    months = (
        "january february march april may june july august september october november december"
    ).split()
    files = {w: f"phonetic/{w[0]}_p" for w in nato}
    files |= {w: f"digits/day-{i}" for i, w in enumerate(days)}
    files |= {w: f"digits/mon-{i}" for i, w in enumerate(months)}
    files |= {w: f"digits/{w}" for w in ("today", "tomorrow", "yesterday")}
    files |= {"hello": "hello", "goodbye": "vm-goodbye", "hello world": "hello-world"}
    files |= {"one moment please": "one-moment-please", "please try again": "please-try-again"}

    def load(name):
        pcm, rate = soundfile.read(ASTERISK / f"{name}.wav")
        pcm = resampled(pcm, len(pcm) * RATE // rate)
        loud = np.where(np.abs(pcm) > 0.02 * np.abs(pcm).max())[0]
        return pcm[loud[0] : loud[-1] + 200]

    words = {w: load(f) for w, f in files.items() if (ASTERISK / f"{f}.wav").exists()}
    return words, [load(f"digits/{d}") for d in range(10)]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("bank", type=Path)
    p.add_argument("folder", type=Path)
    p.add_argument("--share", type=float, default=1, help="of the whole number of calls")
    p.add_argument("--seed", type=int, default=7, help="other calls of the same voices")
    args = p.parse_args()

    def count(n):
        return max(1, round(n * args.share))

    args.folder.mkdir(parents=True, exist_ok=True)
    maker = Maker(batches.Bank(args.bank, held=True, say=lambda _: None), args.folder, args.seed)
    maker.mixed("calls-5", count(90), 5)
    maker.mixed("calls-30", count(15), 30)
    maker.silence(count(40))
    maker.needle(count(30))
    maker.talk()
    if ASTERISK.exists():
        maker.human(count(40))
    (args.folder / "calls.json").write_text(json.dumps(maker.calls))
    print(f"{len(maker.calls)} calls, {sum(len(c['frames']) for c in maker.calls)} frames")


if __name__ == "__main__":
    sys.exit(main())
