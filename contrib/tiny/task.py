"""What the tiny model is to do: the words it knows, the rules of a call, and its tokenizer.

A call is a row of frames of 2 s. In each frame something may be said:

    digits    a string of 1 to 5 digits   answered by the digits: 4711
    word      a word or phrase of the list    by itself: thank you
    other     any other speech                by a question mark
    command   "repeat" or "first"             by the last or the first answer that is remembered
    silence   nothing, noise, tones           by <|listen|>

Remembered is what attention still reaches: with a window an answer is forgotten once it lies
outside the window and not among the sinks. Where nothing is remembered a command is answered by a
question mark. Question marks are not remembered as answers.
"""

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

DIGITS = "zero one two three four five six seven eight nine".split()
WORDS = (
    "sunday monday tuesday wednesday thursday friday saturday january february march april may "
    "june july august september october november december alpha bravo charlie delta echo "
    "foxtrot golf hotel india juliet kilo lima mike oscar papa quebec romeo sierra tango "
    "uniform victor whiskey xray yankee zulu yes no stop go left right up down hello goodbye "
    "today tomorrow yesterday sorry help start pause record"
).split()
PHRASES = ["thank you", "hello world", "please try again", "one moment please"]
KNOWN = WORDS + PHRASES
COMMANDS = ["repeat", "first"]
SPELLING = {"xray": "x-ray"}  # what a synthesiser is given, where that is not the word itself
DIGIT, WORD, OTHER, COMMAND, SILENCE = range(5)
KINDS = ["digits", "words", "other", "commands", "silence"]

LISTEN, UNKNOWN = "<|listen|>", "?"
SYSTEM = "You are a helpful assistant."  # the family's own default
SPECIALS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>",
    "<|vision_bos|>", "<|vision_eos|>", "<|IMAGE|>", "<|VIDEO|>", LISTEN,
]  # fmt: skip
VOCAB = 512
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def make_tokenizer():
    """Byte-level BPE as Qwen splits it, whose merges are those of the words of the task."""
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tok.train_from_iterator((KNOWN + [SYSTEM, "system", "user", "assistant"]) * 50, trainer)
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    return tok


class Chat:
    """The released form of a call, in ids: a system turn, then for each frame a user's turn that is
    all audio and the assistant's answer."""

    ROWS = 50  # audio rows of a frame

    def __init__(self, tok):
        def ids(text):
            return tok.encode(text).ids

        self.tok = tok
        self.before = ids("<|im_start|>user\n<|audio_bos|>")
        self.after = ids("<|audio_eos|><|im_end|>\n<|im_start|>assistant\n")
        self.close = ids("<|im_end|>\n")
        self.end, self.audio = tok.token_to_id("<|im_end|>"), tok.token_to_id("<|AUDIO|>")
        self.listen, self.unknown = tok.token_to_id(LISTEN), tok.token_to_id(UNKNOWN)
        self.frame = self.before + [self.audio] * self.ROWS + self.after
        self.ids = ids

    def prompt(self, system=SYSTEM):
        return self.ids(f"<|im_start|>system\n{system}<|im_end|>\n") if system else []

    def build(self, kinds, labels, system=SYSTEM, window=None, sinks=0):
        """The ids of a call, what each position is to draw next (-100: anything), and the answers.

        kinds, labels: of each frame, see remembered(). The answers are those of a cache with that
        window and those sinks."""
        ids = self.prompt(system)
        draw, answers, spans = [-100] * len(ids), [], []
        for kind, label in zip(kinds, labels):
            ids = ids + self.frame
            draw += [-100] * (len(self.frame) - 1)
            at = len(ids)  # where the answer's first token comes to lie: drawn by the one before
            seen = [t for t, a, b in spans if window is None or a > at - 1 - window or b <= sinks]
            text = answer(kind, label, seen)
            said = self.ids(text) + [self.end]
            answers.append(text)
            if text not in (LISTEN, UNKNOWN):
                spans.append((text, at, at + len(said)))
            ids = ids + said[:-1] + self.close
            draw += said + [-100] * (len(self.close))
        return ids, draw, answers


def answer(kind, label, seen):
    """What is answered to a frame when `seen` are the answers that are remembered, in order."""
    if kind == SILENCE:
        return LISTEN
    if kind == OTHER:
        return UNKNOWN
    if kind != COMMAND:
        return label
    return (seen or [UNKNOWN])[-1 if label == "repeat" else 0]
