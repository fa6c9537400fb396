#!/usr/bin/env python3
"""Makes a bank of short utterances: bank.py [--held] [--only N] FOLDER

A shard is 25 speakers of one engine. Of each utterance it holds the power spectra, a column each
10 ms, as float16 logarithms of full scale; what was said and how it is answered; American phones,
and where espeak-ng spoke, the phone of each column. The held-out bank has other voices and keeps
the samples too. A shard depends on its own name only; those that are there are not made again.
"""

import argparse
import json
import os
import random
import re
import sys
import zlib
from pathlib import Path

import numpy as np

from sound import FFT, HOP, RATE, columns, resampled
from task import COMMAND, COMMANDS, DIGIT, DIGITS, KNOWN, OTHER, SPELLING, UNKNOWN, WORD
from voices import ENGINES, Espeak

SPEAKERS = 25  # of a shard
SHARDS = {"espeak": 18, "flite": 12, "festival": 10}
HELD_SHARDS = {"espeak": 1, "flite": 1, "festival": 1}
LONGEST = 1.94  # seconds
DICTIONARY = "/usr/share/dict/american-english"
NUMBERS = (
    "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty "
    "forty fifty sixty seventy eighty ninety hundred thousand million double triple dozen"
).split()


class Texts:
    """What a speaker says: (kind, label, text)."""

    def __init__(self, espeak):
        self.espeak = espeak
        words = set(DIGITS + COMMANDS + ["oh"]) | {w for k in KNOWN for w in k.split()}
        self.taken = {tuple(espeak.phones(SPELLING.get(w, w))) for w in words}
        with open(DICTIONARY) as f:
            lines = [w.strip() for w in f]
        self.other = [w for w in lines if re.fullmatch("[a-z]{3,9}", w) and w not in words]

    def strange(self, rng):
        """A word that sounds like none of those that are known."""
        while True:
            word = rng.choice(NUMBERS if rng.random() < 0.12 else self.other)
            if tuple(self.espeak.phones(word)) not in self.taken:
                return word

    def of(self, rng):
        out = [(DIGIT, str(d), w) for d, w in enumerate(DIGITS)]
        if rng.random() < 0.25:
            out[0] = (DIGIT, "0", "oh")
        for _ in range(7):
            n = rng.choices([2, 3, 4, 5], [25, 25, 28, 22])[0]
            digits = [rng.randrange(10) for _ in range(n)]
            words = ["oh" if d == 0 and rng.random() < 0.25 else DIGITS[d] for d in digits]
            between = ", " if rng.random() < 0.15 else " "
            out.append((DIGIT, "".join(map(str, digits)), between.join(words)))
        out += [(WORD, w, SPELLING.get(w, w)) for w in rng.sample(KNOWN, 14)]
        out += [(COMMAND, c, c) for c in COMMANDS]
        for _ in range(10):
            words = [self.strange(rng) for _ in range(rng.choices([1, 2, 3], [45, 30, 25])[0])]
            if len(words) > 1 and rng.random() < 0.3:
                words[rng.randrange(len(words))] = rng.choice(KNOWN + DIGITS)
            out.append((OTHER, UNKNOWN, " ".join(words)))
        return out


def trimmed(pcm, rate, events, size):
    """At 16 kHz with a peak of 1, without the silence around it, and when its phones begin there.
    size: of the speaker's throat; above 1 lower and slower. None: too long, or nothing."""
    n = int(len(pcm) * RATE / rate * size)
    if n < RATE // 20 or np.abs(pcm).max() < 1e-4:
        return None
    pcm = resampled(pcm, n)
    pcm /= np.abs(pcm).max()
    loud = np.where(np.abs(pcm) > 0.02)[0]
    first, last = max(0, loud[0] - 160), loud[-1] + 320
    if not RATE // 10 < last - first <= LONGEST * RATE:
        return None
    return pcm[first:last], [(t * size - first / RATE, phone) for t, phone in events]


def make(engine, name, held, texts):
    rng = random.Random(zlib.crc32(name.encode()))
    voices = ENGINES[engine]() if engine != "espeak" else texts.espeak
    rows, spectra, phones, sounds = [], [], [], []
    for speaker in range(SPEAKERS):
        who, size = voices.speaker(rng, held), rng.uniform(0.85, 1.18)
        todo = texts.of(rng)
        said = voices.say(who, [text for _, _, text in todo])
        for (kind, label, text), (pcm, rate, events) in zip(todo, said):
            found = trimmed(pcm, rate, events, size)
            if found is None:
                continue
            sound, begins = found
            phase = rng.randrange(HOP)
            lead = FFT // 2 + phase
            padded = np.concatenate([np.zeros(lead), sound, np.zeros(FFT)]).astype(np.float32)
            power = columns(padded)
            at = (np.arange(len(power)) * HOP - phase) / RATE  # of a column's middle
            place = np.searchsorted([t for t, _ in begins], at, side="right") - 1
            phones += [begins[p][1] if begins and p >= 0 else "" for p in place]
            spectra.append(np.log(power + 1e-12).astype(np.float16))
            sounds.append((sound * 32767).astype(np.int16))
            rows.append(dict(
                kind=kind, label=label, text=text, speaker=speaker,
                voice=f"{engine} {who['voice']}", columns=len(power), samples=len(sound),
                aligned=bool(begins),
            ))  # fmt: skip
    for row in rows:
        row["phones"] = texts.espeak.phones(row["text"])
    return rows, np.concatenate(spectra), phones, np.concatenate(sounds)


def write(folder, name, rows, spectra, phones, sounds):
    names = sorted(set(phones))
    number = {p: i for i, p in enumerate(names)}
    files = {".spec.npy": spectra, ".phones.npy": np.array([number[p] for p in phones], np.int16)}
    if sounds is not None:
        files[".pcm.npy"] = sounds
    for end, array in files.items():
        np.save(folder / f"{name}{end}", array)
    part = folder / f"{name}.part"  # the list comes last: a shard with a list is whole
    part.write_text(json.dumps(dict(phones=names, rows=rows)))
    os.replace(part, folder / f"{name}.json")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("folder", type=Path)
    p.add_argument("--held", action="store_true", help="the voices that training never hears")
    p.add_argument("--only", type=int, help="at most so many shards of each engine")
    args = p.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    shards = HELD_SHARDS if args.held else SHARDS
    # In turns, so that a bank in the making has all engines already.
    todo = sorted((i / n, engine, i) for engine, n in shards.items() for i in range(n))
    texts = None
    for _, engine, i in todo:
        name = f"{'held-' if args.held else ''}{engine}-{i:02}"
        if (args.folder / f"{name}.json").exists() or (args.only and i >= args.only):
            continue
        texts = texts or Texts(Espeak())
        rows, spectra, phones, sounds = make(engine, name, args.held, texts)
        write(args.folder, name, rows, spectra, phones, sounds if args.held else None)
        print(f"{name}: {len(rows)} utterances, {len(spectra) / 6000:.1f} min", flush=True)


if __name__ == "__main__":
    sys.exit(main())
