"""Imported by the process that tests fork: the commands, and what ranks use of torch."""

import gc
import importlib
import pkgutil

import torch
from hypothesis import strategies

import glft_schema.cli

torch.set_num_threads(1)
strategies.text().validate()  # makes the table of characters, or reads it from hypothesis' folder
for module in pkgutil.iter_modules(glft_schema.cli.__path__, "glft_schema.cli."):
    importlib.import_module(module.name)
for name in ("glft_schema.distributed", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp"):
    importlib.import_module(name)
gc.freeze()  # what is imported lives until the end: no collection need scan it
