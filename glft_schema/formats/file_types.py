"""File types: the mix of tensor types in a GGUF file, as values of ``general.file_type``.

Source: enum llama_ftype in include/llama.h, and the guess of a file type in
src/llama-model-loader.cpp, of llama.cpp b11434.
"""

FILE_TYPE = "general.file_type"
FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12,
    "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ2_XXS": 19, "IQ2_XS": 20,
    "Q2_K_S": 21, "IQ3_XS": 22, "IQ3_XXS": 23, "IQ1_S": 24, "IQ4_NL": 25, "IQ3_S": 26, "IQ3_M": 27, "IQ2_S": 28, "IQ2_M": 29,
    "IQ4_XS": 30, "IQ1_M": 31, "BF16": 32, "TQ1_0": 36, "TQ2_0": 37, "MXFP4_MOE": 38, "NVFP4": 39, "Q1_0": 40, "Q2_0": 41,
}  # fmt: skip
MIXES = {"Q3_K_M": "q3_k", "Q4_K_M": "q4_k", "Q5_K_M": "q5_k", "MXFP4_MOE": "mxfp4"}  # the type that most tensors have
OTHER_MIXES = {
    "Q2_K_S": "q2_k", "Q3_K_S": "q3_k", "Q3_K_L": "q3_k", "Q4_K_S": "q4_k", "Q5_K_S": "q5_k", "IQ2_M": "iq2_s",
    "IQ3_XS": "iq3_s", "IQ3_M": "iq3_s",
}  # fmt: skip
MAIN_TYPES = {code: {**MIXES, **OTHER_MIXES}.get(name, name.lower()) for name, code in FILE_TYPES.items()}
MOSTLY = {MAIN_TYPES[code]: code for name, code in FILE_TYPES.items() if name not in OTHER_MIXES}  # type -> code
