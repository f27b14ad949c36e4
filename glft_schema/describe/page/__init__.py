"""A file as one self-contained page of HTML; see `render`."""
