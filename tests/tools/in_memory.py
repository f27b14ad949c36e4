"""Where a file is safe at once: a writer waits for the disk twice a file, and a property writes thousands."""

from pathlib import Path

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # for `tempfile`, which has a folder of its own choice for None
