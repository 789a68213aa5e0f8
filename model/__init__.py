"""The mathematics of the served models, and how their files are read; nothing of serving."""
