"""``python -m glft_schema`` is the `glft` command."""

from glft_schema.cli import main

main()
