"""A file as a self-contained HTML page; see `render`."""
