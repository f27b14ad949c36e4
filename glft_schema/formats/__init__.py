"""The formats: one file each, in the order of its specification. Formats never import each other."""
