#!/usr/bin/env python3
"""Trains the tiny model: train.py [--steps EAR,JOINT,...] [--until HH:MM] BANK FOLDER

First the ear alone: phones by column where espeak-ng tells them, and CTC over the phones of
everything. Then both parts: the answers of calls of 3 to 30 frames, half of them under windows and
sinks of random sizes, with the phones as an auxiliary loss. Each further round goes on from the
averaged weights with other calls and a rate that is high again. A step's batch comes in parts,
which depend on the step's number only and are shared out over processes of one thread: threads that
meet in each matrix wait for each other wherever the machine has something else to do. The state is
kept in FOLDER/state.pt every three minutes and at the end: started again, it goes on where it was.
Exit status 3: stopped by SIGTERM or --until before it was done.
"""

import argparse
import datetime
import json
import math
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import batches
from model import WIDTH, Thinker
from task import SYSTEM, Chat, make_tokenizer

SEED = 3
STEPS = [4000, 7400, 4400, 4400, 2700]  # of the ear, of both, of each further round
PARTS = 1, 2  # of a step's batch, in the ear's stage and in the joint ones
EAR_CALLS = [1, 2, 3, 4, 6, 16]  # frames of the calls of a part of the ear's stage
JOINT_FRAMES = 30  # of a part
PEAK = {"ear": 2.5e-3, "joint": 2e-3}
WARM = {"ear": 300, "joint": 200}
DOUBT = 0.5  # what an answer "?" weighs: a voice that is new is taken for that, whatever it says
DROPOUT = 0.1  # of what the ear tells the text model
KEEP = 0.999  # of the averaged weights, a step
SAVE_S = 180
FIGURES = "ctc column".split(), "ctc column lm token".split()
SYSTEMS = [SYSTEM] * 8 + ["", "Say what you hear."]


class Units:
    """The phones of the auxiliary losses; 0 is CTC's blank, and silence where columns are told."""

    def __init__(self, bank):
        american = {p for row in bank.rows for p in row["phones"]}
        columns = {p for row in bank.phones for p in row} - {"", "_", "_:"}
        self.ctc = {p: i + 1 for i, p in enumerate(sorted(american))}
        self.column = {p: i + 1 for i, p in enumerate(sorted(columns))}
        self.column |= {"": 0, "_": 0, "_:": 0, None: -100}


class Net(nn.Module):
    """The thinker, and the heads that are thrown away after training."""

    def __init__(self, units):
        super().__init__()
        self.thinker, self.norm = Thinker(), nn.LayerNorm(WIDTH)
        self.ctc = nn.Linear(WIDTH, len(units.ctc) + 1)
        self.column = nn.Linear(WIDTH, max(units.column.values()) + 1)


def call_lengths(r):
    """Calls of 3 to 30 frames, short and long ones alike often by the logarithm, and half of 30,
    where what is to be remembered lies far back."""
    if r.random() < 0.5:
        return [JOINT_FRAMES]
    out, left = [], JOINT_FRAMES
    while left > 0:
        n = min(int(3 * 10 ** r.uniform(0, 1.0001)), 30, left)
        out.append(n)
        left -= n
    return out


def window_of(r, chat, system):
    """None (unbounded) or a window, and its sinks: few, the prompt's, or the first frame's too."""
    if r.random() < 0.5:
        return None, 0
    prompt = len(chat.prompt(system))
    sinks = [4, prompt, prompt + len(chat.frame) + 8][r.choice(3, p=[0.4, 0.3, 0.3])]
    return int(96 * 6 ** r.uniform(0, 1)), sinks


def phone_loss(net, units, heard, frames):
    """heard [n, 100, WIDTH]; frames: what batches.make tells of each."""
    whole = [i for i, (_, _, phones, _) in enumerate(frames) if phones is not None]
    target = [[units.ctc[p] for p in frames[i][2]] for i in whole]
    logp = net.ctc(heard[whole]).float().log_softmax(-1).transpose(0, 1)
    ctc = F.ctc_loss(
        logp, torch.tensor(sum(target, []), dtype=torch.long), torch.full((len(whole),), 100),
        torch.tensor([len(t) for t in target]), reduction="sum", zero_infinity=True,
    ) / (sum(len(t) for t in target) + len(target))  # fmt: skip
    told = torch.tensor([[units.column[p] for p in f[3][::2]] for f in frames])
    column = F.cross_entropy(net.column(heard).float().flatten(0, 1), told.flatten())
    return ctc, column


def losses(net, units, chat, bank, stage, step, part):
    r = np.random.default_rng([SEED, stage, step, part])
    lengths = EAR_CALLS if stage == 0 else call_lengths(r)
    mel, calls = batches.make(bank, r, lengths)
    heard, rows = net.thinker.audio_tower(mel)
    ctc, column = phone_loss(net, units, net.norm(heard), sum(calls, []))
    out = dict(ctc=ctc, column=column)
    if stage == 0:
        return ctc + column, out
    ids, draw, shape = [], [], []
    for told in calls:
        system = SYSTEMS[r.integers(len(SYSTEMS))]
        window, sinks = window_of(r, chat, system)
        i, d, _ = chat.build(*zip(*[t[:2] for t in told]), system, window, sinks)
        ids += i
        draw += d
        shape.append((len(i), window, min(sinks, len(i))))
    ids, draw = torch.tensor(ids), torch.tensor(draw)
    # What the text model hears has holes, since in training it would hear each speaker too well.
    hidden = net.thinker(ids, ids == chat.audio, F.dropout(rows, DROPOUT), shape)
    known = draw >= 0
    logits, draw = net.thinker.lm_head(hidden[known]).float(), draw[known]
    weight = torch.where(draw == chat.unknown, DOUBT, 1.0)
    lm = (F.cross_entropy(logits, draw, reduction="none") * weight).sum() / weight.sum()
    out |= dict(lm=lm, token=(logits.argmax(-1) == draw).float().mean())
    return lm + 0.25 * ctc + 0.1 * column, out


def rate(stage, step, steps, whole):
    """Warms up, and falls to a hundredth along a cosine; the ear's falls to a third only. A further
    round has the last steps of the `whole` first one's once more."""
    name, low = ("ear", 0.33) if stage == 0 else ("joint", 0.01)
    warm = min(1, (step + 1) / WARM[name])
    at = step / steps if stage == 0 else (whole - steps + step) / whole
    fall = 0.5 * (1 + math.cos(math.pi * at))
    return PEAK[name] * warm * (low + (1 - low) * fall)


class Run:
    def __init__(self, args):
        self.args, self.stop, self.rank = args, False, 0
        self.bank = batches.Bank(args.bank)
        self.units = Units(self.bank)
        self.tok = make_tokenizer()
        self.chat = Chat(self.tok)
        torch.manual_seed(SEED)
        self.net = Net(self.units)
        self.mean = {n: p.detach().clone() for n, p in self.net.state_dict().items()}
        params = list(self.net.parameters())
        self.opt = torch.optim.AdamW(
            [dict(params=[p for p in params if p.dim() > 1], weight_decay=0.02),
             dict(params=[p for p in params if p.dim() < 2], weight_decay=0)],
            betas=(0.9, 0.98),
        )  # fmt: skip
        self.stage = self.step = 0
        self.seconds = 0.0
        self.file = args.folder / "state.pt"
        if self.file.exists():
            state = torch.load(self.file)
            assert state["units"] == len(self.units.ctc), "the bank is another one"
            self.net.load_state_dict(state["net"])
            self.mean = state["mean"]
            self.opt.load_state_dict(state["opt"])
            self.stage, self.step, self.seconds = state["stage"], state["step"], state["seconds"]

    def save(self):
        part = self.file.with_suffix(".part")
        torch.save(
            dict(net=self.net.state_dict(), mean=self.mean, opt=self.opt.state_dict(),
                 stage=self.stage, step=self.step, seconds=self.seconds, units=len(self.units.ctc)),
            part,
        )  # fmt: skip
        os.replace(part, self.file)

    def one(self, steps):
        """A step, the same in all processes. -> its figures, and whether somebody is to stop."""
        for group in self.opt.param_groups:
            group["lr"] = rate(self.stage, self.step, steps, self.args.steps[1])
        self.opt.zero_grad()
        names, parts = FIGURES[self.stage > 0], PARTS[self.stage > 0]
        told = np.zeros(len(names))
        for part in range(self.rank, parts, self.args.processes):
            with torch.autocast("cpu", torch.bfloat16, enabled=not self.args.f32):
                loss, out = losses(
                    self.net, self.units, self.chat, self.bank, self.stage, self.step, part
                )
            (loss / parts).backward()
            told += [out[name].item() / parts for name in names]
        stop, told = self.shared(told)
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        if torch.isfinite(norm):
            self.opt.step()
        self.step += 1
        # Young averages forget faster.
        keep = min(KEEP, (self.step + 1) / (self.step + 10))
        with torch.no_grad():
            for n, p in self.net.state_dict().items():
                self.mean[n].lerp_(p, 1 - keep)
        return dict(zip(names, told)) | dict(norm=norm.item()), stop

    def shared(self, told):
        """Adds up the gradients and the figures of all processes."""
        stop = self.stop or over(self.args.until)
        if self.args.processes == 1:
            return stop, told
        params = list(self.net.parameters())
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
        flat = torch.cat([g.flatten() for g in grads] + [torch.tensor([*told, stop]).float()])
        dist.all_reduce(flat)
        *sums, last = flat.split([p.numel() for p in params] + [len(told) + 1])
        for p, g in zip(params, sums):
            p.grad = g.view_as(p)
        return last[-1].item() > 0, last[:-1].tolist()

    def go(self):
        """All processes end at the same step; the first one speaks and saves."""
        saved = told = time.monotonic()
        some = []
        while self.stage < len(self.args.steps):
            steps = self.args.steps[self.stage]
            while self.step < steps:
                begun = time.monotonic()
                figures, stop = self.one(steps)
                some.append(figures)
                now = time.monotonic()
                self.seconds += now - begun
                if self.rank == 0 and (self.step % 50 == 0 or self.step == steps):
                    line = {k: round(float(np.mean([s[k] for s in some])), 4) for k in some[0]}
                    head = dict(
                        stage=self.stage, step=self.step, hours=round(self.seconds / 3600, 3)
                    )
                    head["step_s"] = round((now - told) / len(some), 3)
                    print(json.dumps(head | line), flush=True)
                    told, some = now, []
                if self.rank == 0 and (stop or now - saved > SAVE_S):
                    self.save()
                    saved = now
                if stop:
                    return 3
            self.stage += 1
            if self.stage < len(self.args.steps):
                self.step = 0
            if self.stage > 1:
                self.net.load_state_dict(self.mean)
        if self.rank == 0:
            self.save()
        return 0


def spread(run):
    """Forks, so that the bank is in memory once; each process takes its place in the group."""
    meeting = tempfile.mkdtemp()
    run.rank = next((i for i in range(1, run.args.processes) if os.fork() == 0), 0)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}/group", rank=run.rank,
        world_size=run.args.processes, timeout=datetime.timedelta(hours=6),
    )  # fmt: skip


def over(until):
    return bool(until) and datetime.datetime.now(datetime.timezone.utc) >= until


def clock(text):
    """The next HH:MM, in UTC."""
    now = datetime.datetime.now(datetime.timezone.utc)
    hour, minute = map(int, text.split(":"))
    at = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    return at if at > now else at + datetime.timedelta(days=1)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("bank", type=Path)
    p.add_argument("folder", type=Path)
    p.add_argument("--steps", type=lambda s: [int(n) for n in s.split(",")], default=STEPS)
    p.add_argument("--until", type=clock, metavar="HH:MM", help="stop then (UTC)")
    p.add_argument("--processes", type=int, default=2)
    p.add_argument("--f32", action="store_true", help="multiply in float32, not in bfloat16")
    args = p.parse_args()
    torch.set_num_threads(1)
    args.folder.mkdir(parents=True, exist_ok=True)
    run = Run(args)
    if args.processes > 1:
        spread(run)
    for s in signal.SIGTERM, signal.SIGINT:
        signal.signal(s, lambda *_: setattr(run, "stop", True))
    return run.go()


if __name__ == "__main__":
    sys.exit(main())
