"""The pages of the architectures, one per file, written with the classes of `page`."""

from glft_schema.families.page import Family
from glft_schema.families.pages.bert import BERT
from glft_schema.families.pages.gemma2 import GEMMA2
from glft_schema.families.pages.gemma3 import GEMMA3
from glft_schema.families.pages.gpt2 import GPT2
from glft_schema.families.pages.gpt_oss import GPT_OSS
from glft_schema.families.pages.granite import GRANITE
from glft_schema.families.pages.lfm2 import LFM2
from glft_schema.families.pages.llama import LLAMA, MISTRAL
from glft_schema.families.pages.mamba2 import MAMBA2
from glft_schema.families.pages.mixtral import MIXTRAL
from glft_schema.families.pages.olmo2 import OLMO2
from glft_schema.families.pages.phi3 import PHI3
from glft_schema.families.pages.qwen2 import QWEN2
from glft_schema.families.pages.qwen2moe import QWEN2MOE
from glft_schema.families.pages.qwen3 import QWEN3
from glft_schema.families.pages.qwen3moe import QWEN3MOE
from glft_schema.families.pages.qwen3next import QWEN3NEXT
from glft_schema.families.pages.qwen35 import QWEN35
from glft_schema.families.pages.smollm3 import SMOLLM3
from glft_schema.families.pages.starcoder2 import STARCODER2

FAMILIES = (
    LLAMA, MISTRAL, MIXTRAL, GRANITE, OLMO2, QWEN2, QWEN2MOE, QWEN3, QWEN3MOE, GEMMA2, GEMMA3, PHI3, STARCODER2, GPT_OSS, GPT2,
    BERT, SMOLLM3,
    LFM2, QWEN35, QWEN3NEXT, MAMBA2,
)  # fmt: skip
ARCHS = dict.fromkeys(family.arch for family in FAMILIES)
BY_ARCH: dict[str, Family] = {arch: next(family for family in FAMILIES if family.arch == arch) for arch in ARCHS}
