"""What a user opens: containers, files, sets of files, and the layout of new ones."""
