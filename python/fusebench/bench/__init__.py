"""Measuring: verification, timing, statistics, the environment."""
