"""Model folders and adapters on disk: which are refused, and how one is loaded."""
