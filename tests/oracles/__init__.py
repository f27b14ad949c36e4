"""Other readers and writers of the formats, which say what is right: written apart, or not ours."""
