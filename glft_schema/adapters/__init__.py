"""LoRA adapters, merged into quantized models."""
