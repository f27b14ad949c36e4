"""llama-quantize's file types as recipes, and the command that quantizes a model by one."""
