"""What several tests use: processes, browsers, weights, strategies; and what is run by hand."""
