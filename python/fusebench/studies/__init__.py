"""The questions fusebench answers, one file each."""
