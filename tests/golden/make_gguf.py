"""Make what the tests of GGUF files compare with.

    python make_gguf.py            (needs requirements.txt; seconds)

gguf/blocks: random blocks of each quantised type, and what llama.cpp's gguf package makes of them.
"""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

HERE = Path(__file__).parent
OUT = HERE / "gguf"

# Where the f16 scales of a block lie.
SCALES = {
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
    Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
}  # fmt: skip
# Subnormal, negative, largest and zero scales beside ordinary ones.
ODD = [2.0**-24, -0.75, 65504.0, 0.0, -(2.0**-15)]


def random_blocks(rng, kind, n):
    """[n, bytes]: any bits, but scales that are finite."""
    block = rng.integers(0, 256, (n, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    for i, at in enumerate(SCALES[kind]):
        scale = rng.normal(0, 0.02, n).astype(np.float16)
        scale[: len(ODD)] = np.roll(ODD, i).astype(np.float16)
        block[:, at : at + 2] = scale.view(np.uint8).reshape(n, 2)
    return block


def blocks():
    folder = OUT / "blocks"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for kind in SCALES:
        block = random_blocks(rng, kind, 8 if gguf.GGML_QUANT_SIZES[kind][0] == 256 else 12)
        block.tofile(folder / f"{kind.name.lower()}.blocks")
        gguf.dequantize(block, kind).astype("<f4").tofile(folder / f"{kind.name.lower()}.f32")


if __name__ == "__main__":
    blocks()
