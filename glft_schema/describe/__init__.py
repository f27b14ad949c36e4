"""What is derived from a schema, or from a file with it, for people and other tools."""
