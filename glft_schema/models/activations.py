"""Measures importance matrices in torch: sums of squared inputs, as by llama-imatrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from glft_schema.display import Progress
from glft_schema.errors import OptionError, TensorError, quote
from glft_schema.families.libraries import library
from glft_schema.families.tensor_names import SUFFIXES, Names, name_map
from glft_schema.formats.gguf_names import OUTPUT
from glft_schema.lazy import torch
from glft_schema.models.from_gguf import family_of, is_dropped
from glft_schema.models.token_chunks import CONTEXT, check_fits, cut, each, run, running
from glft_schema.storage.source import StrPath
from glft_schema.weights.importance import ColumnSums, ImportanceMatrix

BLOCKS = "blk."  # prefix of the matrices that llama-imatrix measures


def measure_importance(
    model: StrPath | torch.nn.Module,
    text: str | Sequence[int],
    *,
    tokenizer: Any = None,
    context: int = CONTEXT,
    chunks: int | None = None,
    progress: Progress | None = None,
    process_output: bool = False,
    names: Mapping[str, str] | None = None,
    dataset: str = "",
) -> ImportanceMatrix:
    """Measures an importance matrix: runs a model on a text, and sums the squared inputs of each
    matrix by column.

    The text is cut into chunks as by ``llama-imatrix``, and the same matrices are measured. Sums
    are computed in float64. For matrices of experts, tokens are counted per expert.

    Args:
        model: a GGUF file of a declared family, a Hugging Face folder, or a model in memory.
        text: the text, or its tokens.
        tokenizer, context, chunks, progress: as for `perplexity`.
        process_output: also measure the output matrix, unless it is the token embedding.
        names: the name of the matrix for each parameter to measure. By default GGUF names, from the
            model's family or the ``gguf`` library.
        dataset: the name of the text, recorded in the matrix.

    Raises:
        OptionError: if transformers or the tokenizer is missing, the text is shorter than a chunk,
            the model has too few tokens or positions, its GGUF names are unknown, or it lacks a
            parameter in `names`.
        FormatError: if the model or the tokenizer cannot be loaded.
        TensorError: if an input is not finite, or a tensor of a model in memory does not belong to
            the family.
        OSError: if a file cannot be read.
    """
    tokens = cut(text, model, tokenizer, context, chunks)
    sums = _Sums()
    with running(model) as module:
        matrices = _gguf_names(module, process_output) if names is None else {key: [name] for key, name in names.items()}
        check_fits(module, tokens)
        body = module if process_output or names else getattr(module, "base_model", module)  # without the output matrix
        with _hooks(module, matrices, sums):
            for chunk in each(tokens, progress):
                run(body, chunk)
    count, context = tokens.shape
    return ImportanceMatrix(sums.columns(), tuple(filter(None, [dataset])), count, context)


class _Sums:
    """Sums of squares by matrix, float64[experts, columns], and their counts."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def add(self, names: Sequence[str], inputs: torch.Tensor, expert: int = 0, experts: int = 1) -> None:
        """Adds the inputs of a matrix, float[..., columns]."""
        rows = inputs.flatten(0, -2).double()
        squares = rows.square().sum(0).cpu()
        for name in names:
            empty = torch.zeros(experts, len(squares), dtype=torch.float64), torch.zeros(experts, dtype=torch.int64)
            sums, counts = self._found.setdefault(name, empty)
            sums[expert] += squares
            counts[expert] += len(rows)

    def columns(self) -> dict[str, ColumnSums]:
        """Returns the sums, sorted by name. Raises TensorError if one is not finite."""
        for name, (sums, _) in self._found.items():
            if not sums.isfinite().all():
                raise TensorError("expected finite inputs, found NaN or infinities", name)
        return {name: ColumnSums(sums.float().numpy(), counts.numpy()) for name, (sums, counts) in sorted(self._found.items())}


def _gguf_names(module: Any, process_output: bool) -> dict[str, list[str]]:
    """Returns the GGUF names of the measured matrices by parameter."""
    family = family_of(module)
    if family is None:
        return _mapped_names(module, process_output)
    parameters = dict(module.named_parameters())
    in_family = Names(family, module.config.to_dict(), len(parameters))
    names = {}
    for stored, parameter in parameters.items():
        name = stored.removeprefix(family.prefix)
        if parameter.dim() < 2 or is_dropped(name, family):
            continue
        matrices = in_family.place_of(name).in_gguf
        if _is_measured(matrices[0], process_output):
            names[stored] = matrices
    return names


def _mapped_names(module: Any, process_output: bool) -> dict[str, list[str]]:
    """Returns the names for a causal model of an undeclared family, from the ``gguf`` library.

    Raises OptionError if the model is not causal, the library lacks its architecture or one of its
    matrices, or a parameter has more than two dims.
    """
    kind, arch = type(module).__name__, getattr(getattr(module, "config", None), "model_type", "")
    matrices = {name: parameter for name, parameter in module.named_parameters() if parameter.dim() > 1}
    mapped: dict[str, str | None] = {"": None}
    if kind.endswith("ForCausalLM") and arch in library("gguf").MODEL_ARCH_NAMES.values():
        names = name_map(arch, module.config.num_hidden_layers, len(matrices))
        mapped = {name: names.get_name(name, try_suffixes=SUFFIXES) for name in matrices}
    if None in mapped.values() or any(parameter.dim() > 2 for parameter in matrices.values()):
        expected = f"expected a model of a declared class, or with names in the gguf library, found {kind}"
        raise OptionError(f"{expected}: use glft.models.measure_importance(model, names=...) in Python")
    return {stored: [name] for stored, name in mapped.items() if name and _is_measured(name, process_output)}


def _is_measured(matrix: str, process_output: bool) -> bool:
    return (matrix.startswith(BLOCKS) and matrix.endswith(SUFFIXES[0])) or (process_output and matrix == OUTPUT)


@contextmanager
def _hooks(module: torch.nn.Module, matrices: Mapping[str, list[str]], sums: _Sums) -> Iterator[None]:
    """Adds the inputs of layers to `sums` while the block runs.

    Raises OptionError if the model does not have a parameter.
    """
    hooks = []
    try:
        for parameter, names in matrices.items():
            layer, _, attribute = parameter.rpartition(".")
            try:
                is_stack = module.get_parameter(parameter).dim() == 3
            except AttributeError:
                raise OptionError(f"expected names of the model's parameters, found {quote(parameter)}") from None
            hook = _experts_hook if is_stack else _linear_hook
            hooks.append(module.get_submodule(layer).register_forward_pre_hook(hook(attribute, names, sums)))
        yield
    finally:
        for handle in hooks:
            handle.remove()


Hook = Callable[[Any, Any], None]


def _linear_hook(attribute: str, names: Sequence[str], sums: _Sums) -> Hook:
    """Returns a hook of a linear layer, whether its weights are transposed or not."""
    return lambda layer, inputs: sums.add(names, inputs[0])


def _experts_hook(attribute: str, names: Sequence[str], sums: _Sums) -> Hook:
    """Returns a hook of all experts of a block.

    transformers runs them as one module, whose inputs are the tokens and the indices of their
    experts. The input of the second matrix is recomputed here.
    """

    def hook(layer: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        tokens, chosen = inputs[:2]
        experts = len(layer.gate_up_proj)
        for expert in range(experts):
            rows = tokens[(chosen == expert).any(-1)]
            if attribute == "down_proj" and hasattr(layer, "gate_up_proj_bias"):  # of gpt-oss
                rows = layer._apply_gate(rows @ layer.gate_up_proj[expert] + layer.gate_up_proj_bias[expert])
            elif attribute == "down_proj":
                gate, up = torch.nn.functional.linear(rows, layer.gate_up_proj[expert]).chunk(2, -1)
                rows = layer.act_fn(gate) * up
            sums.add(names, rows, expert, experts)

    return hook
