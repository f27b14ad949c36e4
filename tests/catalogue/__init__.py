"""Bad and unusual files, with how each reader ends on them: ``python -m tests.catalogue [READER [SCALE]]``."""
