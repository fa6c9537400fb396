"""Calls made up from the bank: what is said in them, how it sounds, and their log-mel.

All of it happens on power spectra: pace and throat of a voice are uneven resampling along time and
frequency; rooms, lines and microphones are filters; noise is added as power, its columns drawn like
those of a random process. A call's clamp follows the maximum heard so far, as a stream's does.
"""

import json
from collections import defaultdict

import numpy as np
import torch
import torch.nn.functional as F

from sound import BINS, COLUMNS, filters
from task import COMMAND, COMMANDS, DIGIT, OTHER, SILENCE, WORD

FILTERS = torch.from_numpy(filters())
HZ = torch.arange(BINS) * 40.0
WHITE = 150.0  # power a bin of noise with variance 1: the sum of the window's squares
SPEECH = 0.18  # root mean square of speech whose peak is 1, about
ENGINE_SHARES = {"espeak": 0.4, "flite": 0.3, "festival": 0.3}


def log_mel(power):
    """[frames, 200, 201] of one call, in order -> [frames, 128, 200]"""
    v = torch.log10((power @ FILTERS).clamp_min(1e-10))
    top = v.amax((1, 2)).cummax(0).values
    return ((torch.maximum(v, top[:, None, None] - 8) + 4) / 4).mT.contiguous()


class Bank:
    def __init__(self, folder, held=False, say=print):
        self.rows, self.spectra, self.phones, self.sounds = [], [], [], []
        for n, file in enumerate(sorted(folder.glob("*.json"))):
            name = file.stem
            if name.startswith("held-") != held:
                continue
            doc = json.loads(file.read_text())
            spec = np.load(folder / f"{name}.spec.npy", mmap_mode="r")
            phone = np.load(folder / f"{name}.phones.npy")
            sound = np.load(folder / f"{name}.pcm.npy", mmap_mode="r") if held else None
            at = heard = 0
            for row in doc["rows"]:
                row["speaker"] = (n, row["speaker"])
                end, last = at + row["columns"], heard + row["samples"]
                self.rows.append(row)
                self.spectra.append(spec[at:end])
                self.phones.append([doc["phones"][p] for p in phone[at:end]])
                if held:
                    self.sounds.append(sound[heard:last])
                at, heard = end, last
        if not self.rows:
            raise SystemExit(f"{folder}: no shard of the bank")
        self.by, self.of = defaultdict(list), defaultdict(list)
        for i, row in enumerate(self.rows):
            engine = row["voice"].split()[0]
            key = (row["kind"], row["label"]) if row["kind"] == COMMAND else (row["kind"],)
            self.by[engine, *key].append(i)
            self.of[row["speaker"], *key].append(i)
            if row["kind"] == DIGIT:
                length = "single" if len(row["label"]) == 1 else "string"
                self.by[engine, length].append(i)
                self.of[row["speaker"], length].append(i)
        self.speakers = sorted({row["speaker"] for row in self.rows})
        self.engine = {row["speaker"]: row["voice"].split()[0] for row in self.rows}
        self.engines = sorted(set(self.engine.values()))
        share = np.array([ENGINE_SHARES[e] for e in self.engines])
        self.shares = share / share.sum()
        self.places = defaultdict(list)
        for s in self.speakers:
            self.places[self.engine[s]].append(s)
        say(f"bank: {len(self.rows)} utterances of {len(self.speakers)} speakers")

    def speaker(self, r):
        places = self.places[self.engines[r.choice(len(self.engines), p=self.shares)]]
        return places[r.integers(len(places))]

    def pick(self, r, speaker, *key):
        """An utterance of the speaker, or of anybody where the speaker has none or is None."""
        some = self.of.get((speaker, *key)) if speaker else None
        if not some:
            engine = self.engines[r.choice(len(self.engines), p=self.shares)]
            some = self.by[engine, *key]
        return some[r.integers(len(some))]


# ---- what is said ----


def plan_call(bank, r, frames):
    """[(kind, label, [utterances])] of a call; a digit string may be joined from single ones."""
    quiet, asks = r.uniform(0.05, 0.55), r.uniform(0.1, 0.5)
    one = bank.speaker(r) if r.random() < 0.5 else None
    turns = []
    for _ in range(frames):
        if r.random() < quiet:
            turns.append((SILENCE, "", []))
            continue
        who = one or bank.speaker(r)
        if r.random() < asks:
            label = COMMANDS[r.choice(2, p=[0.55, 0.45])]
            turns.append((COMMAND, label, [bank.pick(r, who, COMMAND, label)]))
            continue
        # Long strings, and digits said twice, are what is learnt last. With more of other speech
        # a voice that is new is taken for that, whatever it says.
        kind = r.choice([DIGIT, WORD, OTHER], p=[0.54, 0.32, 0.14])
        if kind == DIGIT and r.random() < 0.4 and bank.of[who, "single"]:
            some, said = bank.of[who, "single"], []
            for _ in range(r.choice([1, 2, 3, 4, 5], p=[0.08, 0.16, 0.22, 0.27, 0.27])):
                again = said and r.random() < 0.15
                said.append(said[-1] if again else some[r.integers(len(some))])
        elif kind == DIGIT:
            said = [bank.pick(r, who, "string" if r.random() < 0.65 else "single")]
        elif kind == OTHER and r.random() < 0.4:
            said = [bank.pick(r, who, OTHER) for _ in range(r.integers(2, 5))]
            for i in range(1, len(said)):
                if r.random() < 0.25:
                    said[i] = bank.pick(r, who, r.choice([DIGIT, WORD]))
        else:
            said = [bank.pick(r, who, int(kind))]
        turns.append((int(kind), None, said))
    return turns


# ---- how it sounds ----


def paced(r, columns, pace):
    """Where an utterance of so many columns is read to say it that much slower. In most the pace
    comes and goes by 30 %, bent every 120 ms, since voices differ in rhythm."""
    slow = np.full(columns, pace)
    if r.random() < 0.7:
        knots = np.arange(r.uniform(-12, 0), columns + 12, 12)
        slow *= 1 + np.interp(np.arange(columns), knots, r.uniform(-0.3, 0.3, len(knots)))
    ends = np.cumsum(slow)
    n = max(12, int(ends[-1]))
    return np.interp((np.arange(n) + 0.5) * ends[-1] / n, ends - slow / 2, np.arange(columns))


def read(x, at):
    """Rows of x, and what lies between two of them."""
    at = torch.tensor(at, dtype=torch.float32).clamp(max=len(x) - 1.001)
    low = at.long()
    return x[low].lerp(x[low + 1], (at - low)[:, None])


def bent(r):
    """Another throat: of each bin the place where that has it, and how much louder it is there. It
    is larger or smaller, and in most turns bent by up to 12 % more at two or three knots, which lie
    more than half an octave apart, so that formants move against each other and change in level."""
    size = np.full(BINS, r.uniform(0.85, 1.17) if r.random() < 0.6 else 1.0)
    db = np.zeros(BINS)
    if r.random() < 0.75:
        knots = 300 * 2 ** np.cumsum(r.uniform(0.8, 1.6, r.integers(2, 4)))
        size *= 1 + np.interp(HZ, knots, r.uniform(-0.12, 0.12, len(knots)))
        db += np.interp(HZ, knots, r.uniform(-9, 9, len(knots)))
    at = np.arange(BINS) * size
    return at, 10 ** (db / 10) * (at < BINS - 1)


def grains(*shape):
    """Powers of noise of mean 1, [..., columns, bins]; columns overlap."""
    noise = torch.empty(shape).exponential_()
    noise[..., 1:, :] = 0.65 * noise[..., 1:, :] + 0.35 * noise[..., :-1, :]
    return noise


def revoiced(r, x):
    """Another speaker says the spectra [n, 201]: another throat; in half of the turns with sharper
    or duller formants; in three of ten without the harmonics, whose place tells the speaker and no
    word; half of these in a whisper."""
    (at, gain), plain = bent(r), r.random() < 0.7
    if r.random() < 0.5:
        energy, x = x.sum(), x.pow(r.uniform(0.75, 1.3))
        x *= energy / x.sum().clamp_min(1e-20)
    heard = torch.eye(BINS)  # what each bin hears of the others
    if not plain:
        bins, width = torch.arange(BINS), r.integers(3, 7)  # 120 to 240 Hz
        heard = (width - (bins[:, None] - bins).abs()).clamp_min(0.0)
        heard /= heard.sum(1, keepdim=True)
    x = x @ (read(heard, at) * torch.tensor(gain[:, None], dtype=torch.float32)).mT
    return x if plain or r.random() < 0.5 else x * grains(*x.shape)


def in_a_room(x, r):
    """Late energy, falling by 60 dB in a time."""
    fall = 10 ** (-6 * 0.01 / r.uniform(0.1, 0.5))
    kernel = r.uniform(0.02, 0.3) * (1 - fall) * fall ** torch.arange(30.0)
    kernel[0] += 1
    return F.conv1d(F.pad(x.t()[:, None], (29, 0)), kernel.flip(0)[None, None])[:, 0].t()


def put_in(bank, r, turn, out, units):
    """Says a turn into a frame's power [200, 201]; units: its columns' phones. -> label, phones
    heard (None where the utterance is cut), or nothing where it does not fit."""
    kind, label, said = turn
    pace = 2 ** r.uniform(-0.42, 0.55) if r.random() < 0.6 else 1.0
    parts = [(i, paced(r, len(bank.spectra[i]), pace)) for i in said]
    room = len(out)
    cut = kind == OTHER and len(parts) > 1  # talk that goes on over the frame's borders
    if not cut:
        # Columns overlap by what the bank left around an utterance, so that digits can touch.
        while len(parts) > 1 and sum(len(p) - 4 for _, p in parts) + 4 > room:
            parts.pop()
        i, places = parts[0]
        if len(places) > room:
            if len(bank.spectra[i]) > room:
                return None
            parts = [(i, np.linspace(0, len(bank.spectra[i]) - 1, room))]
    lengths = [len(p) - 4 for _, p in parts]
    slack = room - 4 - sum(lengths)
    at = int(r.integers(-25, 10)) if cut else int(r.integers(0, max(1, slack + 1)))
    most = 0 if len(parts) == 1 else (slack - at) // (len(parts) - 1)
    phones = []
    for (i, places), n in zip(parts, lengths):
        first, last = max(0, -at), min(len(places), room - at)
        if last > first:
            places = places[first:last]
            x = torch.from_numpy(np.asarray(bank.spectra[i], np.float32)).exp_()
            out[at + first : at + last] += read(x, places)
            aligned, column = bank.rows[i]["aligned"], bank.phones[i]
            units[at + first : at + last] = [
                column[int(p + 0.5)] if aligned else None for p in places
            ]
        phones += bank.rows[i]["phones"]
        gap = int(r.integers(0, min(max(most, 0), 40) + 1)) if r.random() < 0.8 else max(most, 0)
        at += n + min(gap, 60)
    out.copy_(revoiced(r, out))
    if label is None:
        label = "".join(bank.rows[i]["label"] for i, _ in parts) if kind == DIGIT else None
        label = label or bank.rows[parts[0][0]]["label"]
    return label, (None if cut else phones)


def tone(r, out):
    """Beeps, hums, clicks and bursts: what a silent frame may hold."""
    for _ in range(r.integers(1, 4)):
        if r.random() < 0.5:
            a, b = sorted(r.integers(0, COLUMNS + 1, 2))
            c = int(r.integers(2, 150))
            shape = torch.tensor([0.3, 1.0, 0.3]) * 10 ** r.uniform(-3, 3.5)
            if r.random() < 0.5:
                a, b = 0, COLUMNS
            for k in range(1, 1 + int(r.choice([1, 1, 2, 5]))):
                if c * k + 2 < BINS:
                    out[a:b, c * k - 1 : c * k + 2] += shape / k**2
        else:
            a = int(r.integers(0, COLUMNS - 1))
            n = int(r.integers(1, 30))
            out[a : a + n] += 10 ** r.uniform(-3, 2) * torch.empty(BINS).exponential_()


def call_power(bank, r, turns):
    """-> power [frames, 200, 201], and of each frame its label, phones and phones by column."""
    frames = len(turns)
    power = torch.zeros(frames, COLUMNS, BINS)
    told = []
    level = 10 ** r.uniform(-3.0, 0)  # of the speech, as power
    for t, turn in enumerate(turns):
        units = [""] * COLUMNS
        kind, label, phones = turn[0], "", []
        if kind != SILENCE:
            got = put_in(bank, r, turn, power[t], units)
            if got is None:
                kind = SILENCE
            else:
                label, phones = got
                if r.random() < 0.3:
                    power[t] = in_a_room(power[t], r)
            power[t] *= level * 10 ** r.uniform(-0.5, 0.5)
        told.append((kind, label, phones, units))
    # A line for the call, a little different in each turn.
    u = torch.tensor(r.uniform(-1, 1, 5), dtype=torch.float32)
    db = 10 * u[0] * HZ / 8000 + 5 * u[1] * torch.cos(HZ / 8000 * (12 + 12 * u[2]) + 3.1 * u[3])
    db = db + torch.tensor(r.uniform(-3, 3, (frames, 1)), dtype=torch.float32) * HZ / 8000
    if r.random() < 0.35:  # a telephone
        low, high = r.uniform(80, 350), r.uniform(3300, 4000)
        db = db - ((HZ - high).clamp_min(0) / 100 * r.uniform(3, 30)).clamp_max(90)
        db = db - (low - HZ).clamp_min(0) / 100 * r.uniform(6, 20)
    power *= 10 ** (db / 10)[:, None]
    silent = np.array([kind == SILENCE for kind, *_ in told])
    add_noise(bank, r, power, level, silent)
    for t in np.where(silent)[0]:
        if r.random() < 0.3:
            tone(r, power[t])
    return power, told


def add_noise(bank, r, power, level, silent):
    frames = len(power)
    # One floor in a call; some turns are louder, some silent frames are as loud as anything.
    snr = np.full(frames, r.uniform(12, 50))
    loud = r.random(frames) < 0.12
    snr[loud] = np.minimum(snr[loud], r.uniform(5, 25, loud.sum()))
    sigma = SPEECH * np.sqrt(level) * 10 ** (-snr / 20)
    other = silent & (r.random(frames) < 0.3)
    sigma[other] = 10 ** r.uniform(-4.5, -0.5, other.sum())
    if r.random() < 0.15:  # a line without any
        sigma[~other] = 0
    shape = ((HZ + 60) / 1000) ** torch.tensor(
        r.uniform(-2.2, 0.3) + r.uniform(-0.2, 0.2, (frames, 1)), dtype=torch.float32
    )
    if r.random() < 0.25:  # coloured like speech
        x = np.asarray(bank.spectra[bank.pick(r, None, WORD)], np.float32)
        shape = torch.from_numpy(np.exp(x).mean(0)).clamp_min(1e-6).expand(frames, BINS)
    shape = shape / shape.mean(1, keepdim=True)
    noise = grains(frames, COLUMNS, BINS)
    swing = torch.zeros(frames, COLUMNS, 1)
    for t in np.where(r.random(frames) < 0.25)[0]:
        wave = torch.sin(torch.arange(COLUMNS) * r.uniform(0.01, 0.6) + r.uniform(0, 6))
        swing[t, :, 0] = 10 ** (wave * r.uniform(0.2, 1.5))
    swing[swing.sum((1, 2)) == 0] = 1.0
    sigma = torch.tensor(sigma, dtype=torch.float32).view(-1, 1, 1)
    power += WHITE * sigma**2 * shape[:, None] * noise * swing
    # What 16 bits leave of silence.
    power += (1e-8 if r.random() < 0.7 else 1e-13) * torch.empty(1, COLUMNS, BINS).exponential_()


def masked(mel, r):
    """SpecAugment, mild."""
    for x in mel:
        for _ in range(r.binomial(2, 0.3)):
            a = r.integers(0, 118)
            x[a : a + r.integers(1, 11)] = x.mean()
        for _ in range(r.binomial(2, 0.2)):
            a = r.integers(0, COLUMNS - 8)
            x[:, a : a + r.integers(1, 9)] = x.mean()
    return mel


@torch.autocast("cpu", enabled=False)
def make(bank, r, lengths):
    """Calls of so many frames -> mel [sum, 128, 200], and for each call its frames' (kind, label,
    phones, phones by column); in float32, as a listener's front end has it."""
    torch.manual_seed(int(r.integers(1 << 31)))
    mels, calls = [], []
    for n in lengths:
        power, told = call_power(bank, r, plan_call(bank, r, n))
        mels.append(masked(log_mel(power), r))
        calls.append(told)
    return torch.cat(mels), calls
