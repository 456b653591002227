"""The whole of it: real processes, real clients, real crashes."""
