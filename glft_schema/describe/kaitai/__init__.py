"""A schema in Kaitai Struct's language: the writer, and what it needs to say fields, rows, expressions and names there."""
