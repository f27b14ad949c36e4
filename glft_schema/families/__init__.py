"""Hugging Face folders as GGUF models: tables of names, values, config and vocabulary."""
