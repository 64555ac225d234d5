"""Plans on PyTorch: run them, profile models for them, compare what was predicted with what was measured.

Needs the extra ``octocp[torch]``; nothing else in OctoCP imports torch. What only reads plans and traces
(`actions`, `predict`, `timeline`, `calibration`, `picture`) works without it.
"""
