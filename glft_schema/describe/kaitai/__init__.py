"""The writer for Kaitai Struct: fields, rows of tables, expressions and names."""
