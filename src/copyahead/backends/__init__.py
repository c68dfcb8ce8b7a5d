"""Adapters for engines whose decode loop copyahead owns."""
