"""The engine process: joins the core, the front ends and the worker link."""
