"""Command-line parts of core: parsing, options, and what the commands print."""
