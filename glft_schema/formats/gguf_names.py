"""Names of keys and tensors of GGUF models, and numbers of values, that many modules use."""

import re

ARCHITECTURE = "general.architecture"
TOKENIZER = "tokenizer.ggml."  # prefix of the vocabulary's keys
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"  # tensors; without the second, the first is also the output
TOKEN_TYPES = "normal", "unknown", "control", "user-defined", "unused", "byte"  # from 1 on, as in SentencePiece
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, len(TOKEN_TYPES) + 1)
POOLINGS = "none", "mean", "cls", "last", "rank"  # from 0 on
LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,8})\.")  # in the name of a layer's tensor
SCALES = "scale", "input_scale"  # ends of the names of tensors that scale the codes of NVFP4, and the inputs


def scale_of(name: str, ending: str = SCALES[0]) -> str:
    """Returns the name of the tensor with the scale of a tensor."""
    return f"{name.removesuffix('.weight')}.{ending}"
