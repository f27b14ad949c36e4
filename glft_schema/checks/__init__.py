"""Files compared: with their source, with a manifest, and with what numbers should be."""
