"""Architectures. Each has `features(x)` and a submodule `head`, and forward(x) = head(features(x))."""
