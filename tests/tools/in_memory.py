"""A folder in memory: a writer waits for the disk twice per file, and a property writes thousands."""

from pathlib import Path

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # None is the default of `tempfile`
