"""Readers of files and text that may be hostile. Every reader of the other folders goes through them."""
