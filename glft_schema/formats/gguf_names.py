"""Names of keys and tensors of GGUF models that many modules use."""

import re

ARCHITECTURE = "general.architecture"
TOKENIZER = "tokenizer.ggml."  # prefix of the vocabulary's keys
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"  # tensors; without the second, the first is also the output
LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,8})\.")  # in the name of a layer's tensor
