"""Independent readers and writers of the formats, as oracles for the schema."""
