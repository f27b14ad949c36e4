"""The files that users work with: containers, open files, sets of files, and the layout of new
files."""
