"""``python -m glft_schema`` runs the `glft` command."""

from glft_schema.cli import main

main()
