"""A file as one page of HTML that needs nothing else: see `render`."""
