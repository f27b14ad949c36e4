"""Renders the recipes as a documentation page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from glft_schema.display import markdown_table
from glft_schema.quantizer.recipe_rules import MORE_BITS, MORE_BITS_TEXT, TensorRole, TypeRule
from glft_schema.quantizer.recipes import ALIASES, KEPT_NAMES, KEPT_PARTS, KEPT_PARTS_OF, RECIPES, SEARCHED, SHARED
from glft_schema.weights.fallback_types import FALLBACKS

INTRODUCTION = f"""\
# Recipes

`glft quantize IN OUT TYPE` gives each tensor a type by a recipe, as llama-quantize does. A recipe
is the main type and a list of rules. A rule gives tensors of some roles another type, if its
condition holds; the last rule that applies wins. These are the file types of llama.cpp v0.5.0.

## Terms

- *n* is the number of layers; for attn_v, the number of tensors with this role.
- *layer* is the number of earlier tensors with the same role, in the order of llama.cpp's loader.
  In a model with experts it is the number of the layer in the name, except for attn_v.
- *index* is the number of earlier tensors with the same role in any model.
- *{MORE_BITS}*: {MORE_BITS_TEXT}.
- *imatrix*: there is an importance matrix.
- *70B*: llama.cpp calls the model's size 70B, for example a llama of 80 layers with grouped heads.
- Division rounds down.
"""


def recipes_as_markdown() -> str:
    """Returns the page of recipes in Markdown."""
    return "\n".join([INTRODUCTION, *_roles(), *_kept_rules(), *_fallbacks(), *_summary(), *_shared_rules(), *_recipes()])


def _codes(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def _roles() -> Iterator[str]:
    yield "## Roles\n\nThe first role counts whose text is in a tensor's name; the first two are whole names.\n"
    yield markdown_table(("role", "name"), ((str(role), _codes(role.value.split()) or "any other") for role in TensorRole))
    yield "Without `output.weight`, the token embedding has the role output.\n"


def _kept_rules() -> Iterator[str]:
    yield "## Tensors that keep their type\n"
    yield "- tensors of fewer than two dims, not counting leading ones"
    yield "- names that do not end in `weight`"
    yield f"- {_codes(KEPT_NAMES)}"
    yield f"- names with one of {_codes(KEPT_PARTS)}"
    for name, parts in KEPT_PARTS_OF.items():
        yield f"- in {name}, names with one of {_codes(parts)}"
    yield ""


def _fallbacks() -> Iterator[str]:
    yield "## Fallback types\n\nFor rows that are not a multiple of a type's blocks; repeated until one fits.\n"
    types = dict.fromkeys(FALLBACKS.values())
    of = {type_: [name for name, smaller in FALLBACKS.items() if smaller == type_] for type_ in types}
    yield markdown_table(("type", "fallback"), ((_codes(names), f"`{type_}`") for type_, names in of.items()))
    yield "llama.cpp has none for q1_0, and refuses such models.\n"
    yield f"Without an importance matrix, {_codes(sorted(SEARCHED))} are refused, except for output and embedding.\n"


def _summary() -> Iterator[str]:
    yield "## File types\n"
    aliases = {name: alias for alias, name in ALIASES.items()}
    rows = ((f"[{r.name}](#{r.name.lower()})", str(r.code), f"`{r.default}`", aliases.get(r.name, "")) for r in RECIPES)
    yield markdown_table(("file type", "general.file_type", "main type", "alias"), rows)


def _shared_rules() -> Iterator[str]:
    yield "## Rules at the end of most recipes\n"
    yield markdown_table(("", "role", "type", "if"), ((f"({i})", *_row(rule)) for i, rule in enumerate(SHARED, 1)))


def _recipes() -> Iterator[str]:
    for recipe in RECIPES:
        own = [rule for rule in recipe.rules if rule not in SHARED]
        shared = [f"({SHARED.index(rule) + 1})" for rule in recipe.rules if rule in SHARED]
        needs = sorted(recipe.needs_importance - SEARCHED)
        refused = f" {_codes(needs)} is refused without an importance matrix." if needs else ""
        yield f"### {recipe.name}\n"
        yield f"Main type `{recipe.default}`.{refused}\n"
        if own:
            yield markdown_table(("role", "type", "if"), map(_row, own))
        if shared:
            yield f"Then the rules {', '.join(shared)} above.\n"


def _row(rule: TypeRule) -> tuple[str, str, str]:
    roles = "any" if len(rule.roles) == len(TensorRole) else ", ".join(map(str, rule.roles))
    return roles, f"`{rule.type}`", str(rule.when)
