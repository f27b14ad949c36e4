"""How formulas of tensor types are run: in chunks, compiled, over packed bits."""
