"""A plugin as someone else would write it."""
