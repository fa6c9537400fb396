#!/usr/bin/env python3
"""What the model answers: evaluate.py [--engine BIN] MODEL CALLS

Each call of CALLS/calls.json goes through MODEL (a folder in the released layout) in PyTorch and,
with --engine, through mt-feed | mt-serve of that folder, and both are compared with what ought to
be answered. One line of JSON for each set and policy on stdout:

    exact      frames whose answer is right, over `frames`; `kinds`: the same by what was said
    invented   frames answered by neither <|listen|> nor ?, over all that ask for one of them
    engine     exact, as the engine answers; same: frames answered alike by both

With a window a command's right answer is the last, or first, that is remembered. The needle sets
ask whether the last frame brings back what the first one was answered; there the policy changes
nothing about what is right, so that they show what is forgotten.
"""

import argparse
import json
import math
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import soundfile
import torch

from batches import log_mel
from export import load
from model import Cache
from sound import RATE, call_columns
from task import KINDS, LISTEN, UNKNOWN, Chat, make_tokenizer

LIMIT = 16  # tokens of an answer: mt-serve's default
WINDOWS = {"unbounded": (None, 0), "window=128,sinks=4": (128, 4), "window=512,sinks=4": (512, 4)}
POLICIES = {"calls-5": list(WINDOWS), "calls-30": list(WINDOWS)}
NEEDLE_POLICIES = ["unbounded", "window=128,sinks=4", "window=512,sinks=4"]


def answers(thinker, chat, pcm, window, sinks):
    """Greedily, as a session of the engine: of each frame the answer, and by how much the likeliest
    token was ahead of the second (the logarithm of their ratio) where it was least so."""
    power = torch.from_numpy(call_columns(pcm))
    _, rows = thinker.audio_tower(log_mel(power))
    cache, embed = Cache(thinker, window, sinks), thinker.model.embed_tokens
    out, before = [], chat.prompt()
    for row in rows:
        ids = torch.tensor(before + chat.frame)
        x = embed(ids)
        x[ids == chat.audio] = row
        said, before, ahead = [], chat.close, math.inf
        while True:
            (first, second), (token, _) = (t.tolist() for t in cache.feed(x).topk(2))
            ahead = min(ahead, first - second)
            if token == chat.end:
                break
            said.append(token)
            if len(said) == LIMIT:
                before = [token] + chat.close
                break
            x = embed(torch.tensor([token]))
        # The engine's text has no special tokens in it: an answer of none is silence.
        out.append((chat.tok.decode([t for t in said if t != chat.listen]) or LISTEN, ahead))
    return out


def engine_answers(binaries, model, file, policy):
    feed = subprocess.Popen([binaries / "mt-feed", file], stdout=subprocess.PIPE)
    serve = subprocess.run(
        [binaries / "mt-serve", "-m", model, "--kv", policy, "--deadline", "1h"],
        stdin=feed.stdout, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    feed.stdout.close()
    if feed.wait() != 0:
        raise SystemExit(f"mt-feed {file}: exit status {feed.returncode}")
    records = [json.loads(line) for line in serve.stdout.splitlines()]
    return [r["text"] or LISTEN for r in records if r.get("type") == "frame"]


class Tally:
    def __init__(self):
        self.right, self.kinds = [], defaultdict(list)
        self.quiet, self.engine, self.same = [], [], []
        self.wrong = defaultdict(int)

    def frame(self, kind, voice, want, got, engine):
        self.right.append(want == got)
        name = KINDS[kind] + (f" {voice.split()[0]}" if voice else "")
        self.kinds[name].append(want == got)
        if want in (LISTEN, UNKNOWN):
            self.quiet.append(got not in (LISTEN, UNKNOWN))
        if want != got:
            self.wrong[f"{want} -> {got}"] += 1
        if engine is not None:
            self.engine.append(engine == want)
            self.same.append(engine == got)

    def line(self):
        def mean(some):
            return round(sum(some) / len(some), 4)

        out = dict(exact=mean(self.right), frames=len(self.right))
        out["kinds"] = {k: [mean(v), len(v)] for k, v in sorted(self.kinds.items())}
        if self.quiet:
            out["invented"] = [mean(self.quiet), len(self.quiet)]
        if self.engine:
            out |= dict(engine=mean(self.engine), same=mean(self.same))
        out["wrong"] = dict(sorted(self.wrong.items(), key=lambda w: -w[1])[:8])
        return out


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("model", type=Path)
    p.add_argument("calls", type=Path)
    p.add_argument("--engine", type=Path, metavar="BIN", help="folder of mt-feed and mt-serve")
    p.add_argument("--sets", help="only those whose names begin so")
    p.add_argument("--threads", type=int, default=1)
    args = p.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(args.threads)
    thinker, chat = load(args.model), Chat(make_tokenizer())
    calls = defaultdict(list)
    for call in json.loads((args.calls / "calls.json").read_text()):
        if call["set"].startswith(args.sets or ""):
            calls[call["set"]].append(call)
    for name, some in calls.items():
        needle = name.startswith("needle")
        for policy in NEEDLE_POLICIES if needle else POLICIES.get(name, ["unbounded"]):
            window, sinks = WINDOWS[policy]
            tally = Tally()
            for call in some:
                file = args.calls / call["file"]
                pcm, rate = soundfile.read(file, dtype="float32")
                assert rate == RATE
                frames = call["frames"]
                got = [text for text, _ in answers(thinker, chat, pcm, window, sinks)]
                theirs = [None] * len(got)
                if args.engine:
                    theirs = engine_answers(args.engine, args.model, file, policy)
                    assert len(theirs) == len(got), file
                kinds, labels = [f["kind"] for f in frames], [f["label"] for f in frames]
                _, _, want = chat.build(kinds, labels, window=window, sinks=sinks)
                if needle:
                    if got[0] in (LISTEN, UNKNOWN):
                        continue  # nothing was heard that could be remembered
                    frames, got, theirs, want = frames[-1:], got[-1:], theirs[-1:], got[:1]
                for f, w, g, e in zip(frames, want, got, theirs):
                    tally.frame(f["kind"], f["voice"], w, g, e)
            if tally.right:
                print(json.dumps(dict(set=name, kv=policy) | tally.line()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
