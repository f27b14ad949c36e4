"""The pages of the architectures, one per file, written with the classes of `page`."""

from glft_schema.families.pages.arcee import ARCEE
from glft_schema.families.pages.bert import BERT, BERT_CLASSIFIER
from glft_schema.families.pages.cohere2 import COHERE2
from glft_schema.families.pages.command_r import COMMAND_R
from glft_schema.families.pages.deepseek2 import DEEPSEEK2
from glft_schema.families.pages.deepseek3 import DEEPSEEK3
from glft_schema.families.pages.ernie4_5 import ERNIE4_5
from glft_schema.families.pages.ernie4_5_moe import ERNIE4_5_MOE
from glft_schema.families.pages.exaone4 import EXAONE4
from glft_schema.families.pages.falcon import FALCON
from glft_schema.families.pages.gemma import GEMMA
from glft_schema.families.pages.gemma2 import GEMMA2
from glft_schema.families.pages.gemma3 import GEMMA3
from glft_schema.families.pages.gemma_embedding import GEMMA_EMBEDDING
from glft_schema.families.pages.glm4 import GLM4
from glft_schema.families.pages.glm4_moe import GLM4_MOE
from glft_schema.families.pages.gpt2 import GPT2
from glft_schema.families.pages.gpt_oss import GPT_OSS
from glft_schema.families.pages.gptneox import GPTNEOX
from glft_schema.families.pages.granite import GRANITE
from glft_schema.families.pages.granitemoe import GRANITEMOE
from glft_schema.families.pages.internlm2 import INTERNLM2
from glft_schema.families.pages.lfm2 import LFM2
from glft_schema.families.pages.llama import LLAMA, MISTRAL
from glft_schema.families.pages.llama4 import LLAMA4
from glft_schema.families.pages.mamba2 import MAMBA2
from glft_schema.families.pages.minimax_m2 import MINIMAX_M2
from glft_schema.families.pages.mistral3 import MISTRAL3
from glft_schema.families.pages.mixtral import MIXTRAL
from glft_schema.families.pages.modern_bert import MODERN_BERT, MODERN_BERT_CLASSIFIER
from glft_schema.families.pages.nomic_bert import NOMIC_BERT
from glft_schema.families.pages.olmo2 import OLMO2
from glft_schema.families.pages.olmo3 import OLMO3
from glft_schema.families.pages.olmoe import OLMOE
from glft_schema.families.pages.phi2 import PHI2
from glft_schema.families.pages.phi3 import PHI3
from glft_schema.families.pages.qwen2 import QWEN2
from glft_schema.families.pages.qwen2moe import QWEN2MOE
from glft_schema.families.pages.qwen2vl import QWEN2VL
from glft_schema.families.pages.qwen3 import QWEN3
from glft_schema.families.pages.qwen3moe import QWEN3MOE
from glft_schema.families.pages.qwen3next import QWEN3NEXT
from glft_schema.families.pages.qwen3vl import QWEN3VL
from glft_schema.families.pages.qwen35 import QWEN35
from glft_schema.families.pages.roberta import ROBERTA, ROBERTA_CLASSIFIER, XLM_ROBERTA, XLM_ROBERTA_CLASSIFIER
from glft_schema.families.pages.seed_oss import SEED_OSS
from glft_schema.families.pages.smollm3 import SMOLLM3
from glft_schema.families.pages.stablelm import STABLELM
from glft_schema.families.pages.starcoder import STARCODER
from glft_schema.families.pages.starcoder2 import STARCODER2

FAMILIES = (
    LLAMA, MISTRAL, MIXTRAL, GRANITE, OLMO2, QWEN2, QWEN2MOE, QWEN3, QWEN3MOE, GEMMA2, GEMMA3, PHI3, STARCODER2, GPT_OSS,
    GPT2, BERT, SMOLLM3, QWEN2VL, QWEN3VL, MISTRAL3, OLMOE, GRANITEMOE, MINIMAX_M2, GLM4_MOE, LLAMA4, ARCEE, SEED_OSS,
    ERNIE4_5, OLMO3, EXAONE4, GLM4, ERNIE4_5_MOE, INTERNLM2, LFM2, QWEN35, PHI2, GEMMA, GPTNEOX, STABLELM, FALCON, STARCODER,
    COMMAND_R, COHERE2, DEEPSEEK2, DEEPSEEK3, ROBERTA, XLM_ROBERTA, BERT_CLASSIFIER, ROBERTA_CLASSIFIER,
    XLM_ROBERTA_CLASSIFIER, MODERN_BERT, MODERN_BERT_CLASSIFIER, GEMMA_EMBEDDING, NOMIC_BERT, QWEN3NEXT, MAMBA2,
)  # fmt: skip
