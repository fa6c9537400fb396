"""The synthesisers: espeak-ng through its library, flite and festival as programs.

A speaker is one of their voices with a pitch, a pace and a size of its own (see size() in bank.py).
say() yields for each text its samples at the voice's own rate and, from espeak-ng, when each of its
phones begins: [(seconds, phone), ...].
"""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import soundfile

DIALECTS = ["en-us"] * 5 + [
    "en", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029", "en-us-nyc",
]  # fmt: skip
VARIANTS = (
    "- - - Alex Alicia Andy Annie Denis Diogo Gene Gene2 Henrique Hugo Jacky Lee Marco Mario "
    "Michael Nguyen RicishayMax RicishayMax3 adam anika announcer antonio aunty belinda "
    "benjamin boris caleb david ed edward f1 f2 f3 f5 grandma gustave iven iven3 john "
    "kaukovalta klatt klatt3 klatt6 m1 m2 m3 m4 m6 m7 m8 marcelo michel miguel norbert pablo "
    "paul pedro rob robert sandro shelby steph2 travis victor zac"
).split()
HELD_DIALECT = "en-gb-scotland"
HELD_VARIANTS = "f4 m5 Andrea max linda Mike steph quincy".split()
FLITE, HELD_FLITE = ["kal16", "awb", "slt"], ["rms"]
FESTIVAL, HELD_FESTIVAL = ["kal_diphone", "cmu_us_slt_arctic_hts"], ["ked_diphone"]
PITCH = {"awb": 130, "slt": 180, "rms": 95, "kal16": 105, "kal_diphone": 105, "ked_diphone": 110}


class Espeak:
    """One in a process: the library has one state."""

    PHONEME, END = 7, 0

    class Event(ctypes.Structure):
        class Id(ctypes.Union):
            _fields_ = [("number", ctypes.c_int), ("string", ctypes.c_char * 8)]

        _fields_ = [
            ("type", ctypes.c_int), ("unique", ctypes.c_uint), ("text", ctypes.c_int),
            ("length", ctypes.c_int), ("ms", ctypes.c_int), ("sample", ctypes.c_int),
            ("user", ctypes.c_void_p), ("id", Id),
        ]  # fmt: skip

    def __init__(self):
        self.lib = ctypes.CDLL("libespeak-ng.so.1")
        self.rate = self.lib.espeak_Initialize(2, 0, None, 1)  # synchronous, with phoneme events
        if self.rate <= 0:
            raise SystemExit("espeak-ng does not start: is espeak-ng-data installed?")
        self.sound, self.events = [], []
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(self.Event)
        )
        self.callback = kind(self._hear)
        self.lib.espeak_SetSynthCallback(self.callback)
        self.lib.espeak_TextToPhonemes.restype = ctypes.c_char_p

    def _hear(self, sound, n, event):
        if sound and n > 0:
            self.sound.append(np.ctypeslib.as_array(sound, (n,)).copy())
        i = 0
        while event[i].type != self.END:
            if event[i].type == self.PHONEME:
                self.events.append((event[i].sample / self.rate, event[i].id.string.decode()))
            i += 1
        return 0

    def voice(self, name):
        if self.lib.espeak_SetVoiceByName(name.encode()) != 0:
            raise SystemExit(f"espeak-ng has no voice {name}")

    def speaker(self, rng, held):
        variant = rng.choice(HELD_VARIANTS if held else VARIANTS)
        dialect = rng.choice(DIALECTS)
        if held and rng.random() < 0.3:
            variant, dialect = "-", HELD_DIALECT
        return dict(
            voice=dialect if variant == "-" else f"{dialect}+{variant}",
            pace=rng.uniform(90, 230), pitch=rng.uniform(25, 75), range=rng.uniform(20, 80),
        )  # fmt: skip

    def say(self, speaker, texts):
        self.voice(speaker["voice"])
        for number, name in (1, "pace"), (3, "pitch"), (4, "range"):
            self.lib.espeak_SetParameter(number, int(speaker[name]), 0)
        for text in texts:
            self.sound, self.events = [], []
            raw = text.encode()
            self.lib.espeak_Synth(raw, len(raw) + 1, 0, 0, 0, 1, None, None)
            pcm = np.concatenate(self.sound or [np.zeros(0, np.int16)])
            yield pcm.astype(np.float32), self.rate, self.events

    def phones(self, text):
        """What an American would say, as a list of phones: the units of the encoder's training."""
        self.voice("en-us")
        at = ctypes.c_char_p(text.replace(",", "").encode())
        out = []
        while at.value:
            part = self.lib.espeak_TextToPhonemes(ctypes.byref(at), 1, ord("_") << 8)
            out += part.decode().replace(" ", "_").split("_")
        out = [p.strip("',|!:;%=") for p in out]
        return [p for p in out if p]


class Flite:
    def speaker(self, rng, held):
        voice = rng.choice(HELD_FLITE if held else FLITE)
        return dict(
            voice=voice, pace=rng.uniform(0.7, 1.5), pitch=PITCH[voice] * rng.uniform(0.8, 1.3)
        )

    def say(self, speaker, texts):
        with tempfile.NamedTemporaryFile(suffix=".wav") as file:
            for text in texts:
                subprocess.run(
                    ["flite", "-voice", speaker["voice"], "--setf",
                     f"duration_stretch={speaker['pace']:.3f}", "--setf",
                     f"int_f0_target_mean={speaker['pitch']:.1f}", "-t", text, "-o", file.name],
                    check=True,
                )  # fmt: skip
                pcm, rate = soundfile.read(file.name, dtype="float32")
                yield pcm, rate, []


class Festival:
    def speaker(self, rng, held):
        voice = rng.choice(HELD_FESTIVAL if held else FESTIVAL)
        return dict(
            voice=voice, pace=rng.uniform(0.7, 1.5),
            pitch=PITCH.get(voice, 0) * rng.uniform(0.8, 1.3), spread=rng.uniform(8, 24),
        )  # fmt: skip

    def say(self, speaker, texts):
        with tempfile.TemporaryDirectory() as folder:
            lines = [f"(voice_{speaker['voice']})"]
            lines += [f"(Parameter.set 'Duration_Stretch {speaker['pace']:.3f})"]
            if speaker["pitch"]:
                lines += [
                    f"(set! int_lr_params '((target_f0_mean {speaker['pitch']:.1f}) (target_f0_std "
                    f"{speaker['spread']:.1f}) (model_f0_mean 170) (model_f0_std 34)))"
                ]
            for i, text in enumerate(texts):
                synth = f'(utt.synth (Utterance Text "{text}"))'
                lines += [f'(utt.save.wave {synth} "{folder}/{i}.wav" \'riff)']
            script = Path(folder) / "say.scm"
            script.write_text("\n".join(lines) + "\n")
            subprocess.run(["festival", "-b", script], check=True, stderr=subprocess.DEVNULL)
            for i in range(len(texts)):
                pcm, rate = soundfile.read(f"{folder}/{i}.wav", dtype="float32")
                yield pcm, rate, []


ENGINES = {"espeak": Espeak, "flite": Flite, "festival": Festival}
