"""Files for users: containers, open files, sets of files, and the layout of new ones."""
