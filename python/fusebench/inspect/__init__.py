"""Looking inside: what was captured, what was generated, what ran, and on which resources."""
