"""Looking inside: captured graphs, generated kernels, and what compiled kernels need."""
