"""Results as rows, table, file and page."""
