"""Speed and memory, side by side with the peers and with what the hardware can do: ``python -m tests.bench``.

Every ratio is of two things measured in turn in this one run, so that it can be compared between machines. docs/speed-tables.md
has the tables, with the date and the machine.
"""
