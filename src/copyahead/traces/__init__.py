"""Recorded traffic: reading it, writing it, and replaying it against drafters without a model."""
