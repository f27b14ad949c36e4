"""llama-quantize's file types, and the tensors that it leaves alone.

``general.file_type`` has the code of a file type. Source: src/llama-quant.cpp of llama.cpp v0.5.0,
the build in version 3.22.1 of npm's package ``@node-llama-cpp/linux-x64``.
"""

from __future__ import annotations

import operator

from glft_schema.errors import OptionError, quote
from glft_schema.formats.file_types import FILE_TYPES
from glft_schema.quantizer.recipe_rules import (
    FFN,
    IMPORTANCE,
    MIDDLE,
    MISFIT,
    MORE_BITS,
    STACKED,
    Condition,
    ModelFacts,
    Recipe,
    TensorRole,
    TypeRule,
    architecture,
    early,
    early_by_count,
    experts,
    first,
    heads_per_kv,
    name_matches,
    rule,
    so_far,
)
from glft_schema.words import suggestion

OUTPUT, EMBEDDING, V, K, Q, ATTN_OUTPUT = (
    TensorRole.OUTPUT,
    TensorRole.EMBEDDING,
    TensorRole.ATTN_V,
    TensorRole.ATTN_K,
    TensorRole.ATTN_Q,
    TensorRole.ATTN_OUTPUT,
)
UP, GATE, DOWN = FFN
FALCON, GQA, EIGHT = architecture("falcon"), heads_per_kv(4), experts(8)

# Tensors that keep their type: those of fewer than two dims, those whose name does not end in
# "weight", and these.
KEPT_NAMES = ("position_embd.weight", "token_types.weight")
KEPT_PARTS = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj",
    "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight", "attn_rel_b.weight",
    *(f"time_mix_{part}.weight" for part in (
        "first", "w0", "w1", "w2", "v0", "v1", "v2", "a0", "a1", "a2", "g1", "g2", "decay_w1", "decay_w2", "lerp_fused",
    )),
    ".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger",
    "a.rvq.codebook", "mm.a.code_embd",
)  # fmt: skip
KEPT_PARTS_OF = {
    "glm5-next": (
        "hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate", "indexer_compressor_ape",
        "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight", "ssm_g_b.weight", "ssm_beta.weight", "attn_kv_a_mqa.weight",
        "attn_k_b.weight", "attn_v_b.weight",
    ),
}  # fmt: skip


def _is_70b(model: ModelFacts) -> bool:
    """Returns whether llama.cpp classifies a model as 70B."""
    name, layers = model.architecture, model.layers
    if name in ("llama", "llama-embed"):
        return layers == 80 and model.heads != model.kv_heads and model.experts != 8
    return layers == {"qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}.get(name)


SIZE_70B = Condition("70B", lambda at: _is_70b(at.model))

# The last rules of all file types with a quantized main type, except IQ1_*, IQ2_* and MXFP4_MOE.
COMMON = (
    rule(V, "q5_k", SIZE_70B & so_far("q3_k", "q4_k")),
    rule((V, K), "q8_0", EIGHT),
)
GLM5 = rule(TensorRole.OTHER, "q8_0", architecture("glm5-next") & name_matches("attn_q_a", "attn_q_b", "nextn.eh_proj"))
EIGHT_EXPERTS = rule(ATTN_OUTPUT, "q5_k", EIGHT & ~FALCON)
SHARED = (*COMMON, GLM5)
SEARCHED = frozenset({"iq3_xxs", "iq2_xxs", "iq2_xs", "iq2_s", "iq1_m", "iq1_s"})  # refused without an importance matrix


def _output(type_: str) -> tuple[TypeRule, ...]:
    """Returns the rules of the output, or of the embedding that takes its place."""
    return rule(OUTPUT, type_), rule(OUTPUT, "q8_0", FALCON), rule(OUTPUT, "q8_0", MISFIT)


def _recipe(name: str, default: str, *rules: TypeRule, output: str = "q6_k") -> Recipe:
    return Recipe(name, FILE_TYPES[name], default, (*_output(output), *rules, *SHARED), SEARCHED)


def _of_few_bits(name: str, default: str, embedding: str, low: str, attn_output: str | None) -> Recipe:
    """Returns the recipe of an IQ1 or IQ2 file type; `low` is for more sensitive tensors."""
    rules = (
        rule(EMBEDDING, embedding),
        rule(V, low),
        rule(V, "q4_k", GQA | experts(4, operator.ge)),
        rule(K, "q4_k", EIGHT),
        rule(DOWN, low, early_by_count(8)),
        *([rule(ATTN_OUTPUT, attn_output)] if attn_output else []),
        rule(ATTN_OUTPUT, "q5_k", EIGHT),
    )
    return Recipe(name, FILE_TYPES[name], default, (*_output("q5_k"), *rules, GLM5), SEARCHED)


RECIPES = (
    Recipe("F32", FILE_TYPES["F32"], "f32"),
    Recipe("F16", FILE_TYPES["F16"], "f16"),
    Recipe("BF16", FILE_TYPES["BF16"], "bf16"),
    _recipe("Q4_0", "q4_0", rule(DOWN, "q4_1", IMPORTANCE & early(8))),
    _recipe("Q4_1", "q4_1"),
    _recipe("Q5_0", "q5_0", rule(DOWN, "q5_1", IMPORTANCE & early(8))),
    _recipe("Q5_1", "q5_1"),
    _recipe("Q8_0", "q8_0", output="q8_0"),
    _recipe("Q1_0", "q1_0"),
    _recipe("Q2_0", "q2_0", rule(EMBEDDING, "q4_k")),
    _recipe("TQ1_0", "tq1_0", rule(EMBEDDING, "q4_k")),
    _recipe("TQ2_0", "tq2_0", rule(EMBEDDING, "q4_k")),
    Recipe("MXFP4_MOE", FILE_TYPES["MXFP4_MOE"], "mxfp4", (
        rule(tuple(TensorRole), "q8_0"),
        rule(tuple(role for role in TensorRole if role is not OUTPUT), "mxfp4", STACKED & ~architecture("bailingmoe3")),
        rule(FFN, "mxfp4", STACKED),
        GLM5,
    ), SEARCHED),
    _recipe("Q2_K", "q2_k",
        rule(V, "q3_k"),
        rule(V, "q4_k", GQA),
        rule(DOWN, "q3_k"),
        rule(ATTN_OUTPUT, "q3_k", ~FALCON),
        EIGHT_EXPERTS),
    Recipe("Q2_K_S", FILE_TYPES["Q2_K_S"], "q2_k", (
        *_output("q6_k"),
        rule(V, "q4_k", GQA),
        rule(DOWN, "q4_k", early(8)),
        *SHARED,
    ), SEARCHED | {"q2_k"}),
    _recipe("Q3_K_S", "q3_k", EIGHT_EXPERTS),
    _recipe("Q3_K_M", "q3_k",
        rule(V, "q4_k"),
        rule(V, "q5_k", first(2)),
        rule(DOWN, "q4_k", ~FALCON | MORE_BITS),
        rule(DOWN, "q5_k", early(16)),
        rule(ATTN_OUTPUT, "q4_k", ~FALCON),
        EIGHT_EXPERTS),
    _recipe("Q3_K_L", "q3_k",
        rule(V, "q5_k"),
        rule(DOWN, "q5_k"),
        rule(DOWN, "q4_k", FALCON),
        rule(ATTN_OUTPUT, "q5_k", ~EIGHT),
        rule(ATTN_OUTPUT, "q4_k", FALCON)),
    _recipe("Q4_K_S", "q4_k",
        rule(V, "q5_k", first(4)),
        rule(DOWN, "q5_k", early(8) & ~FALCON),
        EIGHT_EXPERTS),
    _recipe("Q4_K_M", "q4_k",
        rule(V, "q6_k", MORE_BITS),
        rule(DOWN, "q6_k", MORE_BITS),
        rule(DOWN, "q5_k", MORE_BITS & FALCON),
        rule(DOWN, "q6_k", early(16) & FALCON),
        EIGHT_EXPERTS),
    _recipe("Q5_K_S", "q5_k"),
    _recipe("Q5_K_M", "q5_k", rule((V, DOWN), "q6_k", MORE_BITS)),
    _recipe("Q6_K", "q6_k"),
    _recipe("IQ4_NL", "iq4_nl",
        rule(V, "q5_k", GQA),
        rule(DOWN, "q5_k", early(8) & ~IMPORTANCE),
        EIGHT_EXPERTS),
    _recipe("IQ4_XS", "iq4_xs",
        rule(V, "q5_k", GQA),
        rule(DOWN, "q5_k", early(8) & ~IMPORTANCE),
        EIGHT_EXPERTS),
    _recipe("IQ3_M", "iq3_s",
        rule(V, "q4_k"),
        rule(DOWN, "q4_k", early(8) | EIGHT & MORE_BITS),
        rule(ATTN_OUTPUT, "q4_k", ~FALCON),
        EIGHT_EXPERTS),
    _recipe("IQ3_S", "iq3_s", rule(V, "q4_k", GQA), EIGHT_EXPERTS),
    _recipe("IQ3_XS", "iq3_s",
        rule(V, "q4_k", GQA),
        rule((Q, K), "iq3_xxs"),
        rule((GATE, UP), "iq3_xxs", MIDDLE),
        EIGHT_EXPERTS),
    _recipe("IQ3_XXS", "iq3_xxs",
        rule(EMBEDDING, "iq3_s"),
        rule(V, "iq3_s", ~IMPORTANCE),
        rule(V, "q4_k", GQA),
        rule((Q, K), "iq2_s"),
        rule(DOWN, "q3_k", ~IMPORTANCE),
        rule(DOWN, "q4_k", early(8) & ~IMPORTANCE),
        rule(ATTN_OUTPUT, "iq3_s", ~FALCON),
        EIGHT_EXPERTS, output="q5_k"),
    _of_few_bits("IQ2_M", "iq2_s", embedding="iq3_s", low="iq3_s", attn_output="iq3_s"),
    _of_few_bits("IQ2_S", "iq2_xs", embedding="iq3_s", low="iq3_s", attn_output="iq3_s"),
    _of_few_bits("IQ2_XS", "iq2_xs", embedding="q2_k", low="q2_k", attn_output=None),
    _of_few_bits("IQ2_XXS", "iq2_xxs", embedding="q2_k", low="q2_k", attn_output=None),
    _of_few_bits("IQ1_M", "iq1_m", embedding="q2_k", low="q2_k", attn_output="iq2_xxs"),
    _of_few_bits("IQ1_S", "iq1_s", embedding="q2_k", low="q2_k", attn_output="iq2_xxs"),
)  # fmt: skip
COPY = Recipe("COPY", 0, "f32", only_copy=True)  # its file type is the source's
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}


def recipe_named(name: object) -> Recipe:
    """Returns a recipe by its name in any case, an alias, or its code.

    Raises OptionError if it is unknown.
    """
    wanted = name.upper() if isinstance(name, str) else None if isinstance(name, bool) else name
    known = (*RECIPES, COPY)
    for recipe in known:
        if wanted in (recipe.name, recipe.code, str(recipe.code)) or ALIASES.get(str(wanted)) == recipe.name:
            return recipe
    names = [recipe.name for recipe in known]
    hint = suggestion(str(name).upper(), names) or f"; file types are {', '.join(names)}"
    raise OptionError(f"expected a file type or the path of a recipe file, found {quote(name)}{hint}")


def is_kept(name: str, dims: int, model: ModelFacts, *, keep_output: bool = False) -> bool:
    """Returns whether llama-quantize keeps the type of a tensor.

    Args:
        name: of the tensor.
        dims: the number of dims, without leading dims of size 1.
        model: it belongs to.
        keep_output: whether ``output.weight`` keeps its type.
    """
    parts = (*KEPT_PARTS, *KEPT_PARTS_OF.get(model.architecture, ()))
    if dims < 2 or not name.endswith("weight") or name in KEPT_NAMES or (keep_output and name == OUTPUT.value):
        return True
    return any(part in name for part in parts)
