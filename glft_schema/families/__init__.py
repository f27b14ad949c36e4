"""Hugging Face folders as GGUF models: names, values, config and vocabulary of declared families."""
