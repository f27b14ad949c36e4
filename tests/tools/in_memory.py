"""A folder in memory: a property writes thousands of files, and each waits for the disk twice."""

import os
from pathlib import Path

IN_MEMORY = "/dev/shm" if os.name == "posix" and Path("/dev/shm").is_dir() else None  # None is the default of `tempfile`
